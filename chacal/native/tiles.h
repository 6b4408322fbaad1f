/* What the operators in C share: vectors, products of tiles, copies, softmax and substitution.

Nothing here has a ragged edge: a head is copied into rows and columns that are filled up with
zeros, keys and Z also transposed, since every product is C += A B with numbers of A spread over a
vector and rows of B and C read as vectors. Scores are in powers of two: log2 e is in the keys.
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

struct forward_call {
    struct view q, k, v;
    const float *gamma; /* of every head */
    float *Y, *lse;     /* (heads, n, d_v) and (heads, n), without gaps */
    long heads, n, d, d_v;
    float scale;
    int drop;
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
static void times(long rows, long columns, long depth, const float *A, long lda, const float *B,
                  long ldb, float *C, long ldc, int add) {
    product(rows, columns, depth, A, lda, 1, B, ldb, C, ldc, add);
}

static inline void transposed_times(long rows, long columns, long depth, const float *A, long lda,
                             const float *B, long ldb, float *C, long ldc, int add) {
    product(rows, columns, depth, A, 1, lda, B, ldb, C, ldc, add);
}

/* ---- copies -------------------------------------------------------------------------------- */

static long up(long x, long step) { return (x + step - 1) / step * step; }

/* Rows a to a + TILE of (n, d), times a factor, into (TILE, width); zeros where there are none. */
static void fill(float *to, long width, struct view x, long head, long a, long n, long d,
                 float factor) {
    for (long r = 0; r < TILE; r++, to += width) {
        const float *from = x.data + head * x.head + (a + r) * x.row;
        long there = a + r < n ? d : 0, c = 0;
        for (; c < there; c++) to[c] = from[c] * factor;
        for (; c < width; c++) to[c] = 0;
    }
}

/* (TILE, d) with rows `width` apart -> (d, TILE). */
static void transpose(float *to, const float *from, long width, long d, float factor) {
    for (long c = 0; c < d; c++)
        for (long r = 0; r < TILE; r++) to[c * TILE + r] = from[r * width + c] * factor;
}

/* Rows of a tile, times a factor, to where the caller wants them: d numbers a row, no gaps. */
static void empty(float *to, const float *from, long width, long rows, long d, float factor) {
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < d; c++) to[r * d + c] = from[r * width + c] * factor;
}

/* ---- a tile of rows, forward ---------------------------------------------------------------- */

struct forward_room {
    float *K;                /* (tiles, d, TILE) keys, transposed, times scale · log2 e */
    float *Z;                /* (n, d_v), filled up */
    float *Q, *V, *H;        /* one tile of rows; H becomes A Z */
    float *S;                /* (TILE, CHUNK · TILE) scores, then weights */
    float most[TILE], mass[TILE]; /* of every row: its largest score, and the sum of its weights */
};

static long forward_size(const struct forward_call *call) {
    long n = up(call->n, TILE), width = up(call->d_v, LANES);
    return n * (call->d + width) + GROUP * TILE * (call->d + 2 * width) + TILE * TILE * CHUNK;
}

/* Room for a group of tiles of rows, which share keys, Z and scores. */
static void forward_rooms(const struct forward_call *call, float *room, struct forward_room *at) {
    const long n = up(call->n, TILE), d = call->d, width = up(call->d_v, LANES);
    float *Z = room + n * d, *S = Z + n * width, *next = S + TILE * TILE * CHUNK;
    for (int i = 0; i < GROUP; i++) {
        at[i] = (struct forward_room){.K = room, .Z = Z, .S = S, .Q = next};
        at[i].V = at[i].Q + TILE * d, at[i].H = at[i].V + TILE * width;
        next = at[i].H + TILE * width;
    }
}

/* Rows from `a` on are next: their keys, queries and values, and nothing seen. */
static void begin_tile(struct forward_room *at, const struct forward_call *call, long head, long a) {
    const long d = call->d, width = up(call->d_v, LANES);
    fill(at->Q, d, call->k, head, a, call->n, d, call->scale * LOG2E);
    transpose(at->K + a * d, at->Q, d, d, 1);
    fill(at->Q, d, call->q, head, a, call->n, d, 1);
    fill(at->V, width, call->v, head, a, call->n, call->d_v, 1);
    memset(at->H, 0, TILE * width * sizeof(float));
    for (long r = 0; r < TILE; r++) at->most[r] = -INFINITY, at->mass[r] = 0;
}

/* Scores of so many rows over the TILE keys from `b` on, into S from column `to` on. */
static void score(struct forward_room *at, long rows, long b, long d, long to) {
    times(rows, TILE, d, at->Q, d, at->K + b * d, TILE, at->S + to, CHUNK * TILE, 0);
}

/* What the first `keys` weights of so many rows, of keys from `b` on, take from Z. */
static void take(struct forward_room *at, long rows, long b, long keys, long width) {
    times(rows, width, keys, at->S, CHUNK * TILE, at->Z + b * width, width, at->H, width, 1);
}

static inline void hide_later(float *T, long ld, float with) {
    for (long r = 0; r < TILE; r++)
        for (long s = r + 1; s < TILE; s++) T[r * ld + s] = with;
}

/* The first `columns` of so many rows of S become weights; what H has is made smaller where there is
   a larger score now. A score of -inf weighs nothing. */
static void weigh(struct forward_room *at, long rows, long columns, long width) {
    for (long r = 0; r < rows; r++) {
        float *S = at->S + r * CHUNK * TILE;
        vec most = (vec){} + at->most[r];
        for (long s = 0; s < columns; s += LANES) most = larger(load(S + s), most);
        const float before = at->most[r], now = largest(most);
        const float base = now == -INFINITY ? 0 : now; /* nothing seen yet weighs nothing */
        vec mass = {};
        for (long s = 0; s < columns; s += LANES) {
            const vec weight = power(load(S + s) - base);
            store(S + s, weight);
            mass += weight;
        }
        if (now > before) {
            const float less = exp2f(before - now);
            at->mass[r] *= less;
            for (long c = 0; c < width; c += LANES)
                store(at->H + r * width + c, load(at->H + r * width + c) * less);
            at->most[r] = now;
        }
        at->mass[r] += sum(mass);
    }
}

/* The tile on the diagonal, weights in S, by forward substitution; H holds what is before it. */
static void forward_tile(struct forward_room *at, float *Z, long width, float gamma, int drop) {
    const long ld = CHUNK * TILE;
    for (long r = 0; r < TILE; r++) {
        const float share = 1 / at->mass[r];
        for (long s = 0; s < TILE; s += LANES)
            store(at->S + r * ld + s, load(at->S + r * ld + s) * share);
        for (long c = 0; c < width; c += LANES)
            store(at->H + r * width + c, load(at->H + r * width + c) * share);
    }
    for (long a = 0; a < TILE; a += RUN) {
        times(RUN, width, a, at->S + a * ld, ld, Z, width, at->H + a * width, width, 1);
        for (long r = a; r < a + RUN; r++) {
            const float *T = at->S + r * ld;
            const float own = T[r], rest = drop ? 1 : 1 / (1 - gamma * own);
            for (long c = 0; c < width; c += LANES) {
                vec h = load(at->H + r * width + c);
                for (long s = a; s < r; s++) h += T[s] * load(Z + s * width + c);
                const vec z = (load(at->V + r * width + c) + gamma * h) * rest;
                store(Z + r * width + c, z);
                store(at->H + r * width + c, h + own * z);
            }
        }
    }
}

/* Rows from `a` on are solved: H and log-sum-exps, times a factor, to where the caller wants them. */
static void end_tile(const struct forward_room *at, const struct forward_call *call, long head,
                     long a, double unit) {
    const long rows = MIN(call->n - a, TILE), first = head * call->n + a, d_v = call->d_v;
    empty(call->Y + first * d_v, at->H, up(d_v, LANES), rows, d_v, 1 - call->gamma[head]);
    for (long r = 0; r < rows; r++)
        call->lse[first + r] = (at->most[r] + (double)log2f(at->mass[r])) * unit;
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
