/* What the operators in C are made of: vectors, products of tiles, copies, and threads.

Nothing here has a ragged edge: a head is copied into rows and columns that are filled up with
zeros, keys and Z also transposed, since every product is C += A B with numbers of A spread over a
vector and rows of B and C read as vectors.
*/

#pragma once

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum {
    TILE = 64,                     /* rows of a tile, and keys */
    CHUNK = 4,                     /* tiles of keys whose scores are made at once, forward */
    ROWS = LANES == 16 ? 8 : 4,    /* rows of C that stay in registers */
    RUN = 8,                       /* rows of a diagonal tile that are solved one by one */
    GROUP = 4,                     /* tiles of rows that meet the same keys, one after the other */
};

#define LOG2E 1.44269504088896341f
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* What Python hands over; strides are in numbers, rows themselves lie together. */
struct view {
    const float *data;
    long head, row;
};

/* ---- vectors ------------------------------------------------------------------------------- */

static inline vec load(const float *x) { return *(const vec *)x; }
static inline void store(float *x, vec y) { *(vec *)x = y; }

static inline vec pick(ivec where, vec a, vec b) {
    return (vec)(((ivec)a & where) | ((ivec)b & ~where));
}

static inline vec larger(vec a, vec b) { return pick(a > b, a, b); }

static inline float sum(vec x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

static inline float largest(vec x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static inline float dot(const float *a, const float *b, long width) {
    vec total = {};
    for (long c = 0; c < width; c += LANES) total += load(a + c) * load(b + c);
    return sum(total);
}

/* 2^x to 1e-7 of itself for x up to 127; 0 below -125; NaN for NaN. */
static inline vec power(vec x) {
    const vec magic = (vec){} + 12582912.0f; /* 1.5 · 2^23: what is added to it is rounded */
    const ivec none = x < -125.0f;
    x = pick(none, (vec){} - 125.0f, x);
    const vec whole = x + magic;
    const vec f = x - (whole - magic); /* within a half */
    vec p = (vec){} + 1.535336182e-4f; /* the best polynomial of this degree there: 2e-9 */
    p = p * f + 1.339887445e-3f;
    p = p * f + 9.618437358e-3f;
    p = p * f + 5.550332471e-2f;
    p = p * f + 2.402264791e-1f;
    p = p * f + 6.931472029e-1f;
    p = p * f + 1.0f;
    return pick(x == x, (vec)(((ivec)p + ((ivec)whole << 23)) & ~none), x);
}

/* ---- products ------------------------------------------------------------------------------ */

/* ROWS rows and `wide` vectors of C (+)= A B, over `depth`; A's numbers are `down` and `across`
   apart. Inlined, so that `wide` and the strides are constants and C stays in registers. */
static inline __attribute__((always_inline)) void
block(const int wide, const float *A, long down, long across, const float *B, long ldb, float *C,
      long ldc, long depth, int add) {
    vec c[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            c[r][w] = add ? load(C + r * ldc + w * LANES) : (vec){};
    for (long t = 0; t < depth; t++) {
        vec b[2];
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++) b[w] = load(B + t * ldb + w * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const float a = A[r * down + t * across];
#pragma GCC unroll 2
            for (int w = 0; w < wide; w++) c[r][w] += a * b[w];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++) store(C + r * ldc + w * LANES, c[r][w]);
}

/* C (rows, columns) (+)= A (rows, depth) B (depth, columns); rows a multiple of ROWS, columns of
   LANES. */
static inline __attribute__((always_inline)) void
product(long rows, long columns, long depth, const float *A, long down, long across,
        const float *B, long ldb, float *C, long ldc, int add) {
    long j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
        for (long i = 0; i < rows; i += ROWS)
            block(2, A + i * down, down, across, B + j, ldb, C + i * ldc + j, ldc, depth, add);
    for (; j < columns; j += LANES)
        for (long i = 0; i < rows; i += ROWS)
            block(1, A + i * down, down, across, B + j, ldb, C + i * ldc + j, ldc, depth, add);
}

/* The same with A as it lies, and with A transposed: its numbers then lie together downwards. */
static inline void times(long rows, long columns, long depth, const float *A, long lda, const float *B,
                  long ldb, float *C, long ldc, int add) {
    product(rows, columns, depth, A, lda, 1, B, ldb, C, ldc, add);
}

static inline void transposed_times(long rows, long columns, long depth, const float *A, long lda,
                             const float *B, long ldb, float *C, long ldc, int add) {
    product(rows, columns, depth, A, 1, lda, B, ldb, C, ldc, add);
}

/* ---- copies -------------------------------------------------------------------------------- */

static inline long up(long x, long step) { return (x + step - 1) / step * step; }

static inline const float *row(struct view x, long head, long r) {
    return x.data + head * x.head + r * x.row;
}

/* Rows a to a + TILE of (n, d), times a factor, into (TILE, width); zeros where there are none. */
static inline void fill(float *to, long width, struct view x, long head, long a, long n, long d,
                 float factor) {
    for (long r = 0; r < TILE; r++, to += width) {
        const float *from = row(x, head, a + r);
        long there = a + r < n ? d : 0, c = 0;
        for (; c < there; c++) to[c] = from[c] * factor;
        for (; c < width; c++) to[c] = 0;
    }
}

/* (TILE, d) with rows `width` apart -> (d, TILE). */
static inline void transpose(float *to, const float *from, long width, long d, float factor) {
    for (long c = 0; c < d; c++)
        for (long r = 0; r < TILE; r++) to[c * TILE + r] = from[r * width + c] * factor;
}

/* Rows of a tile, times a factor, to where the caller wants them: d numbers a row, no gaps. */
static inline void empty(float *to, const float *from, long width, long rows, long d, float factor) {
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < d; c++) to[r * d + c] = from[r * width + c] * factor;
}

/* ---- heads and threads --------------------------------------------------------------------- */

struct crew {
    void (*head)(const void *call, long head, float *room);
    const void *call;
    long heads, size; /* numbers of room that one needs */
    atomic_long next;
};

/* Heads are independent: a thread takes the next one that nobody has. */
static void *work(void *argument) {
    struct crew *crew = argument;
    float *room = aligned_alloc(64, up(crew->size * sizeof(float), 64));
    if (room == NULL) return NULL; /* there may be room for others */
#ifdef POISON /* for tests: what nobody wrote must not be read */
    for (long i = 0; i < crew->size; i++) room[i] = NAN;
#endif
    for (long head; (head = atomic_fetch_add(&crew->next, 1)) < crew->heads;)
        crew->head(crew->call, head, room);
    free(room);
    return NULL;
}

/* 0, or 1 where no thread had the memory for what is left. */
static int all_heads(struct crew crew, int threads) {
    pthread_t others[256];
    int count = 0;
    threads = MIN(MIN(threads, 257), (int)crew.heads);
    while (count < threads - 1 && !pthread_create(&others[count], NULL, work, &crew)) count++;
    work(&crew);
    while (count > 0) pthread_join(others[--count], NULL);
    return atomic_load(&crew.next) < crew.heads;
}
