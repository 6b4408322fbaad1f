/* The forward pass of a tile of rows: scores, a softmax that goes along, substitution.

With H = A Z: Z = V + γ H and Y = (1-γ) H. Scores are in powers of two: log2 e is in the keys.
*/

#pragma once

#include "tiles.h"

struct forward_call {
    struct view q, k, v;
    const float *gamma; /* of every head */
    float *Y, *lse;     /* (heads, n, d_v), and (heads, n) in powers of two, without gaps */
    long heads, n, d, d_v;
    float scale;
    int drop;
};

struct forward_room {
    float *Q, *V, *H; /* one tile of rows; H becomes A Z */
    float *S;         /* (TILE, CHUNK · TILE) scores, then weights */
    float most[TILE], mass[TILE]; /* of every row: its largest score, and the sum of its weights */
};

enum { SCORES = TILE * TILE * CHUNK };

static long forward_rows_size(const struct forward_call *call) {
    return TILE * (call->d + 2 * up(call->d_v, LANES));
}

/* Room for a tile of rows, whose scores may be shared with others; gives where it ends. */
static float *forward_rows(const struct forward_call *call, float *room, float *S,
                           struct forward_room *at) {
    const long d = call->d, width = up(call->d_v, LANES);
    *at = (struct forward_room){.Q = room, .V = room + TILE * d, .S = S};
    at->H = at->V + TILE * width;
    return at->H + TILE * width;
}

/* Rows from `a` on are next: their queries, values and keys (to K, transposed), nothing seen. */
static void begin_tile(struct forward_room *at, const struct forward_call *call, long head, long a,
                       float *K) {
    const long d = call->d, width = up(call->d_v, LANES);
    fill(at->Q, d, call->k, head, a, call->n, d, call->scale * LOG2E);
    transpose(K, at->Q, d, d, 1);
    fill(at->Q, d, call->q, head, a, call->n, d, 1);
    fill(at->V, width, call->v, head, a, call->n, call->d_v, 1);
    memset(at->H, 0, TILE * width * sizeof(float));
    for (long r = 0; r < TILE; r++) at->most[r] = -INFINITY, at->mass[r] = 0;
}

/* Scores of so many rows over a tile of keys, into S from column `to` on. */
static void score(struct forward_room *at, long rows, const float *K, long d, long to) {
    times(rows, TILE, d, at->Q, d, K, TILE, at->S + to, CHUNK * TILE, 0);
}

/* What weights of so many rows, `keys` of them from column `from` on, take from Z. */
static void take(struct forward_room *at, long rows, long from, const float *Z, long keys,
                 long width) {
    times(rows, width, keys, at->S + from, CHUNK * TILE, Z, width, at->H, width, 1);
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

/* Rows from `a` on are solved: Y and log-sum-exps to where the caller wants them. */
static void end_tile(const struct forward_room *at, const struct forward_call *call, long head,
                     long a) {
    const long rows = MIN(call->n - a, TILE), first = head * call->n + a, d_v = call->d_v;
    empty(call->Y + first * d_v, at->H, up(d_v, LANES), rows, d_v, 1 - call->gamma[head]);
    for (long r = 0; r < rows; r++) call->lse[first + r] = at->most[r] + log2f(at->mass[r]);
}
