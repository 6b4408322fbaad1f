/* Exact ChaCAL in float32 on one processor, compiled where it runs; the twin of ops/streaming.py.

With H = A Z: Z = V + γ H and Y = (1-γ) H. A head is solved in tiles of 64 rows, in order. A tile
attends to all tiles before it, which are solved, as in ordinary flash attention: products of 64 x
64 numbers that stay in the cache, and a running maximum of the scores. Its own square on the
diagonal is the head of a triangular system: 8 rows at a time take what rows before them pass on by
one more product, and only what is left inside these 8 is done row by row.

The backward pass is the transposed system, last tile first. With W = (1-γ) dY + γ G:

    G = Aᵀ W,   dA = W Zᵀ,   dS = A ∘ (dA - W·H)

Nothing here has a ragged edge: a head is copied into rows and columns that are filled up with
zeros, keys and Z also transposed, since every product is C += A B with numbers of A spread over a
vector and rows of B and C read as vectors. Scores are in powers of two: log2 e is in the keys.

Heads are independent, and threads take the next one that nobody has.
*/

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
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
};

#define LOG2E 1.44269504088896341f
#define LN2 0.69314718055994531f
#define MIN(a, b) ((a) < (b) ? (a) : (b))

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

struct backward_call {
    struct view q, k, v, H, dY;
    const float *gamma, *lse;
    float *dq, *dk, *dv;
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

/* 2^x to 1e-7 of itself for x up to 127; 0 below -125. NaN stays NaN. */
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
    return (vec)(((ivec)p + ((ivec)whole << 23)) & ~none);
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

static void transposed_times(long rows, long columns, long depth, const float *A, long lda,
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

static void zero_above(float *T, long ld) {
    for (long r = 0; r < TILE; r++)
        for (long s = r + 1; s < TILE; s++) T[r * ld + s] = 0;
}

/* ---- forward ------------------------------------------------------------------------------- */

struct forward_room {
    float *K;                /* (tiles, d, TILE) keys, transposed, times scale · log2 e */
    float *Z;                /* (n, d_v), filled up */
    float *Q, *V, *H;        /* one tile of rows; H becomes A Z */
    float *S;                /* (TILE, CHUNK · TILE) scores, then weights */
    float most[TILE], mass[TILE]; /* of every row: its largest score, and the sum of its weights */
};

static long forward_size(const struct forward_call *call) {
    long n = up(call->n, TILE), width = up(call->d_v, LANES);
    return n * (call->d + width) + TILE * (call->d + 2 * width) + TILE * TILE * CHUNK;
}

/* The first `columns` of every row of S become its weights, and what H has is made smaller where
   its scores turn out to be: on the diagonal a row has only the keys up to itself. */
static void weigh(struct forward_room *at, long columns, long width, int diagonal) {
    const long ld = CHUNK * TILE;
    for (long r = 0; r < TILE; r++) {
        float *S = at->S + r * ld;
        if (diagonal)
            for (long s = r + 1; s < TILE; s++) S[s] = -INFINITY;
        vec most = (vec){} + at->most[r];
        for (long s = 0; s < columns; s += LANES) most = larger(load(S + s), most);
        const float before = at->most[r], now = largest(most);
        vec mass = {};
        for (long s = 0; s < columns; s += LANES) {
            const vec weight = power(load(S + s) - now);
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

static void forward_head(const struct forward_call *call, long head, float *room) {
    const long n = up(call->n, TILE), d = call->d, width = up(call->d_v, LANES);
    const float gamma = call->gamma[head];
    struct forward_room at;
    at.K = room, at.Z = at.K + n * d;
    at.Q = at.Z + n * width, at.V = at.Q + TILE * d, at.H = at.V + TILE * width;
    at.S = at.H + TILE * width;
    for (long a = 0; a < n; a += TILE) {
        fill(at.Q, d, call->k, head, a, call->n, d, call->scale * LOG2E);
        transpose(at.K + a * d, at.Q, d, d, 1);
        fill(at.Q, d, call->q, head, a, call->n, d, 1);
        fill(at.V, width, call->v, head, a, call->n, call->d_v, 1);
        memset(at.H, 0, TILE * width * sizeof(float));
        for (long r = 0; r < TILE; r++) at.most[r] = -INFINITY, at.mass[r] = 0;
        for (long b = 0; b < a; b += CHUNK * TILE) {
            const long keys = MIN(a - b, CHUNK * TILE);
            for (long s = 0; s < keys; s += TILE)
                times(TILE, TILE, d, at.Q, d, at.K + (b + s) * d, TILE, at.S + s, CHUNK * TILE, 0);
            weigh(&at, keys, width, 0);
            times(TILE, width, keys, at.S, CHUNK * TILE, at.Z + b * width, width, at.H, width, 1);
        }
        times(TILE, TILE, d, at.Q, d, at.K + a * d, TILE, at.S, CHUNK * TILE, 0);
        weigh(&at, TILE, width, 1);
        forward_tile(&at, at.Z + a * width, width, gamma, call->drop);
        const long rows = MIN(call->n - a, TILE), first = head * call->n + a;
        empty(call->Y + first * call->d_v, at.H, width, rows, call->d_v, 1 - gamma);
        for (long r = 0; r < rows; r++)
            call->lse[first + r] = (at.most[r] + log2f(at.mass[r])) * LN2;
    }
}

/* ---- backward ------------------------------------------------------------------------------ */

struct backward_room {
    float *Kt, *Zt;          /* (tiles, d, TILE) and (tiles, d_v, TILE); Kt times scale · log2 e */
    float *K, *Z;            /* (n, d) and (n, d_v), filled up */
    float *G, *dK;           /* what later rows sent, as long as these */
    float *Q, *H, *W, *dH, *dQ; /* one tile of rows */
    float *P, *dS;           /* (TILE, TILE) */
    float *lse, *own;        /* (n): log-sum-exps in powers of two; of `drop`, A's diagonal */
    float delta[TILE], hop[TILE];
};

static long backward_size(const struct backward_call *call) {
    long n = up(call->n, TILE), wide = up(call->d, LANES), width = up(call->d_v, LANES);
    return n * (call->d + call->d_v + 2 * wide + 2 * width + 2) +
           TILE * (2 * wide + 3 * width) + 2 * TILE * TILE;
}

static float dot(const float *a, const float *b, long width) {
    vec total = {};
    for (long c = 0; c < width; c += LANES) total += load(a + c) * load(b + c);
    return sum(total);
}

/* G of the tile on the diagonal, weights in P, by backward substitution, and W. */
static void backward_tile(struct backward_room *at, float *G, long width, float gamma, int drop) {
    for (long a = TILE - RUN; a >= 0; a -= RUN) {
        const long after = a + RUN;
        transposed_times(RUN, width, TILE - after, at->P + after * TILE + a, TILE,
                         at->W + after * width, width, G + a * width, width, 1);
        for (long s = after - 1; s >= a; s--) {
            const float own = at->P[s * TILE + s], rest = drop ? 1 : 1 / (1 - gamma * own);
            for (long c = 0; c < width; c += LANES) {
                const vec dH = load(at->dH + s * width + c);
                vec g = load(G + s * width + c) + own * dH;
                for (long r = s + 1; r < after; r++)
                    g += at->P[r * TILE + s] * load(at->W + r * width + c);
                g *= rest;
                store(G + s * width + c, g);
                store(at->W + s * width + c, dH + gamma * g);
            }
        }
    }
}

/* dS = P ∘ (dA - δ), where `dS` holds dA; P = 2^(S - lse), where `P` holds S, unless it is known. */
static void slope(struct backward_room *at, const float *lse, int known) {
    for (long r = 0; r < TILE; r++)
        for (long s = r * TILE; s < (r + 1) * TILE; s += LANES) {
            const vec P = known ? load(at->P + s) : power(load(at->P + s) - lse[r]);
            if (!known) store(at->P + s, P);
            store(at->dS + s, P * (load(at->dS + s) - at->delta[r]));
        }
}

/* A tile of rows from `a` on and one of keys from `b` on: what the rows send, weights in P. */
static void send(struct backward_room *at, long b, long wide, long width, int diagonal) {
    if (!diagonal)
        transposed_times(TILE, width, TILE, at->P, TILE, at->W, width, at->G + b * width, width, 1);
    transposed_times(TILE, wide, TILE, at->dS, TILE, at->Q, wide, at->dK + b * wide, wide, 1);
    times(TILE, wide, TILE, at->dS, TILE, at->K + b * wide, wide, at->dQ, wide, 1);
}

static void backward_head(const struct backward_call *call, long head, float *room) {
    const long n = up(call->n, TILE), d = call->d, d_v = call->d_v;
    const long wide = up(d, LANES), width = up(d_v, LANES);
    const float gamma = call->gamma[head];
    struct backward_room at;
    at.Kt = room, at.Zt = at.Kt + n * d, at.K = at.Zt + n * d_v, at.Z = at.K + n * wide;
    at.G = at.Z + n * width, at.dK = at.G + n * width, at.lse = at.dK + n * wide;
    at.own = at.lse + n, at.Q = at.own + n, at.dQ = at.Q + TILE * wide, at.H = at.dQ + TILE * wide;
    at.W = at.H + TILE * width, at.dH = at.W + TILE * width, at.P = at.dH + TILE * width;
    at.dS = at.P + TILE * TILE;
    memset(at.G, 0, n * width * sizeof(float));
    memset(at.dK, 0, n * wide * sizeof(float));
    for (long a = 0; a < n; a += TILE) {
        float *K = at.K + a * wide, *Z = at.Z + a * width;
        fill(K, wide, call->k, head, a, call->n, d, 1);
        transpose(at.Kt + a * d, K, wide, d, call->scale * LOG2E);
        fill(Z, width, call->v, head, a, call->n, d_v, 1);
        fill(at.H, width, call->H, head, a, call->n, d_v, gamma);
        if (call->drop) fill(at.Q, wide, call->q, head, a, call->n, d, call->scale * LOG2E);
        for (long r = 0; r < TILE; r++) {
            at.lse[a + r] = a + r < call->n ? call->lse[head * call->n + a + r] * LOG2E : 0;
            /* with `drop` H counts the hop to oneself and Z does not: Z = V + γ (H - A_tt Z) */
            float rest = 1;
            if (call->drop) {
                at.own[a + r] = exp2f(dot(at.Q + r * wide, K + r * wide, wide) - at.lse[a + r]);
                rest = 1 / (1 + gamma * at.own[a + r]);
            }
            for (long c = r * width; c < (r + 1) * width; c += LANES)
                store(Z + c, (load(Z + c) + load(at.H + c)) * rest);
        }
        transpose(at.Zt + a * d_v, Z, width, d_v, 1);
    }
    for (long a = n - TILE; a >= 0; a -= TILE) {
        float *G = at.G + a * width;
        fill(at.Q, wide, call->q, head, a, call->n, d, 1);
        fill(at.H, width, call->H, head, a, call->n, d_v, 1);
        fill(at.dH, width, call->dY, head, a, call->n, d_v, 1 - gamma);
        memset(at.dQ, 0, TILE * wide * sizeof(float));
        times(TILE, TILE, d, at.Q, wide, at.Kt + a * d, TILE, at.P, TILE, 0);
        for (long r = 0; r < TILE; r++)
            for (long s = 0; s < TILE; s += LANES)
                store(at.P + r * TILE + s, power(load(at.P + r * TILE + s) - at.lse[a + r]));
        zero_above(at.P, TILE);
        backward_tile(&at, G, width, gamma, call->drop);
        for (long r = 0; r < TILE; r++) {
            at.delta[r] = dot(at.W + r * width, at.H + r * width, width);
            if (!call->drop) continue;
            at.hop[r] = gamma * dot(G + r * width, at.Z + (a + r) * width, width);
            at.delta[r] -= at.hop[r] * at.own[a + r];
        }
        times(TILE, TILE, d_v, at.W, width, at.Zt + a * d_v, TILE, at.dS, TILE, 0);
        zero_above(at.dS, TILE);
        if (call->drop)
            for (long r = 0; r < TILE; r++) at.dS[r * TILE + r] -= at.hop[r];
        slope(&at, NULL, 1);
        send(&at, a, wide, width, 1);
        for (long b = 0; b < a; b += TILE) {
            times(TILE, TILE, d, at.Q, wide, at.Kt + b * d, TILE, at.P, TILE, 0);
            times(TILE, TILE, d_v, at.W, width, at.Zt + b * d_v, TILE, at.dS, TILE, 0);
            slope(&at, at.lse + a, 0);
            send(&at, b, wide, width, 0);
        }
        const long rows = MIN(call->n - a, TILE), first = head * call->n + a;
        empty(call->dq + first * d, at.dQ, wide, rows, d, call->scale);
        empty(call->dv + first * d_v, G, width, rows, d_v, 1);
        empty(call->dk + first * d, at.dK + a * wide, wide, rows, d, call->scale);
    }
}

/* ---- heads and threads --------------------------------------------------------------------- */

struct crew {
    const struct forward_call *forward;
    const struct backward_call *backward; /* one of the two is NULL */
    long heads, size;
    atomic_long next;
    atomic_int failed;
};

static void *work(void *argument) {
    struct crew *crew = argument;
    float *room = aligned_alloc(64, up(crew->size * sizeof(float), 64));
    if (room == NULL) {
        atomic_store(&crew->failed, 1);
        return NULL;
    }
#ifdef POISON /* for tests: what nobody wrote must not be read */
    for (long i = 0; i < crew->size; i++) room[i] = NAN;
#endif
    for (long head; (head = atomic_fetch_add(&crew->next, 1)) < crew->heads;)
        if (crew->forward)
            forward_head(crew->forward, head, room);
        else
            backward_head(crew->backward, head, room);
    free(room);
    return NULL;
}

/* 0, or 1 where there was no memory. */
static int all_heads(struct crew *crew, int threads) {
    pthread_t others[256];
    int count = 0;
    threads = MIN(MIN(threads, 257), (int)crew->heads);
    while (count < threads - 1 && !pthread_create(&others[count], NULL, work, crew)) count++;
    work(crew);
    while (count > 0) pthread_join(others[--count], NULL);
    return atomic_load(&crew->failed);
}

int chacal_forward(const struct forward_call *call, int threads) {
    struct crew crew = {.forward = call, .heads = call->heads, .size = forward_size(call)};
    return all_heads(&crew, threads);
}

int chacal_backward(const struct backward_call *call, int threads) {
    struct crew crew = {.backward = call, .heads = call->heads, .size = backward_size(call)};
    return all_heads(&crew, threads);
}
