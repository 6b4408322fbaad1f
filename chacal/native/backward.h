/* The backward pass of a tile of rows: the transposed system. With W = (1-γ) dY + γ G:

    G = Aᵀ W,   dA = W Zᵀ,   dS = A ∘ (dA - W·H),   dγ = <G, H> - <dY, H>

Weights are made anew from the scores, by the same products, and so come out the same. All values
are those that are left when the first value is subtracted: where rows of A sum to 1 this changes no
gradient but the rounding (see `from_first` in ops/streaming.py).
*/

#pragma once

#include "tiles.h"

struct backward_call {
    struct view q, k, v, Y, dY;
    const float *gamma, *lse; /* of every head, and (heads, n) in powers of two */
    float *dq, *dk, *dv;      /* (heads, n, d or d_v), without gaps */
    float *dgamma;            /* of every head */
    long heads, n, d, d_v;
    float scale;
    int drop;
};

/* A tile of keys, and what later rows sent them. */
struct key_tile {
    float *Kt, *Zt; /* (d, TILE), times scale · log2 e, and (d_v, TILE) */
    float *K, *Z;   /* (TILE, d) and (TILE, d_v), filled up */
    float *G, *dK;  /* as large as Z and K */
    float *own;     /* (TILE) A's diagonal, with `drop` */
};

/* A tile of rows. */
struct backward_rows {
    float *Q, *H, *W, *dH, *dQ;
    float *P, *dS;       /* (TILE, TILE) of one tile of keys at a time; other rows may share it */
    const float *first;  /* the value that is subtracted */
    float lse[TILE], delta[TILE];
};

static long key_tile_size(const struct backward_call *call) {
    return TILE * (call->d + call->d_v + 2 * up(call->d, LANES) + 2 * up(call->d_v, LANES) + 1);
}

static struct key_tile key_tile(const struct backward_call *call, float *room) {
    const long wide = TILE * up(call->d, LANES), width = TILE * up(call->d_v, LANES);
    struct key_tile at = {.Kt = room, .Zt = room + TILE * call->d};
    at.K = at.Zt + TILE * call->d_v, at.Z = at.K + wide, at.G = at.Z + width;
    at.dK = at.G + width, at.own = at.dK + wide;
    return at;
}

static long backward_rows_size(const struct backward_call *call) {
    return TILE * (2 * up(call->d, LANES) + 3 * up(call->d_v, LANES));
}

/* What all tiles of rows share. */
static long backward_shared_size(const struct backward_call *call) {
    return 2 * TILE * TILE + up(call->d_v, LANES);
}

/* Room for so many tiles of rows; gives where it ends. */
static float *backward_rows(const struct backward_call *call, long head, float *room,
                            struct backward_rows *rows, int count) {
    const long wide = TILE * up(call->d, LANES), width = up(call->d_v, LANES);
    float *first = room, *P = first + width, *next = P + 2 * TILE * TILE;
    for (long c = 0; c < width; c++)
        first[c] = c < call->d_v && !call->drop ? row(call->v, head, 0)[c] : 0;
    for (int i = 0; i < count; i++) {
        rows[i] = (struct backward_rows){.P = P, .dS = P + TILE * TILE, .first = first, .Q = next};
        rows[i].dQ = rows[i].Q + wide, rows[i].H = rows[i].dQ + wide;
        rows[i].W = rows[i].H + TILE * width, rows[i].dH = rows[i].W + TILE * width;
        next = rows[i].dH + TILE * width;
    }
    return next;
}

/* As `fill`, of what is left when `first` is subtracted, divided by a number. (Times one that is 1 / (1-γ)
   but for rounding, all of H would be too large, or too small, for what it is subtracted from.) */
static void fill_from(const float *first, float *to, long width, struct view x, long head, long a,
                      long n, long d, float by) {
    for (long r = 0; r < MIN(n - a, TILE); r++)
        for (long c = 0; c < d; c++)
            to[r * width + c] = (row(x, head, a + r)[c] - first[c]) / by;
    for (long r = 0; r < TILE; r++)
        for (long c = a + r < n ? d : 0; c < width; c++) to[r * width + c] = 0;
}

/* Keys and Z of the tile from `a` on, transposed too, to which nobody has sent yet. */
static void prepare(const struct key_tile *at, const struct backward_call *call, long head, long a,
                    const struct backward_rows *spare) {
    const long d = call->d, d_v = call->d_v, wide = up(d, LANES), width = up(d_v, LANES);
    const float gamma = call->gamma[head];
    fill(at->K, wide, call->k, head, a, call->n, d, 1);
    transpose(at->Kt, at->K, wide, d, call->scale * LOG2E);
    fill_from(spare->first, at->Z, width, call->v, head, a, call->n, d_v, 1);
    fill_from(spare->first, spare->H, width, call->Y, head, a, call->n, d_v, 1 - gamma);
    if (call->drop) fill(spare->Q, wide, call->q, head, a, call->n, d, call->scale * LOG2E);
    for (long r = 0; r < TILE; r++) {
        /* with `drop` H counts the hop to oneself and Z does not: Z = V + γ (H - A_tt Z) */
        float rest = 1;
        if (call->drop) {
            const float lse = a + r < call->n ? call->lse[head * call->n + a + r] : 0;
            at->own[r] = exp2f(dot(spare->Q + r * wide, at->K + r * wide, wide) - lse);
            rest = 1 / (1 + gamma * at->own[r]);
        }
        for (long c = r * width; c < (r + 1) * width; c += LANES)
            store(at->Z + c, (load(at->Z + c) + gamma * load(spare->H + c)) * rest);
    }
    transpose(at->Zt, at->Z, width, d_v, 1);
    memset(at->G, 0, TILE * width * sizeof(float));
    memset(at->dK, 0, TILE * wide * sizeof(float));
}

/* Rows from `a` on are next: what belongs to them, and in P their scores over their own keys. */
static void begin_rows(struct backward_rows *rows, const struct key_tile *at,
                       const struct backward_call *call, long head, long a) {
    const long d = call->d, d_v = call->d_v, wide = up(d, LANES), width = up(d_v, LANES);
    const float gamma = call->gamma[head];
    fill(rows->Q, wide, call->q, head, a, call->n, d, 1);
    fill_from(rows->first, rows->H, width, call->Y, head, a, call->n, d_v, 1 - gamma);
    fill(rows->dH, width, call->dY, head, a, call->n, d_v, 1 - gamma);
    memset(rows->dQ, 0, TILE * wide * sizeof(float));
    for (long r = 0; r < TILE; r++)
        rows->lse[r] = a + r < call->n ? call->lse[head * call->n + a + r] : 0;
    times(TILE, TILE, d, rows->Q, wide, at->Kt, TILE, rows->P, TILE, 0);
}

/* Scores of so many rows become weights. */
static void whole_weights(struct backward_rows *rows, long count) {
    for (long r = 0; r < count; r++)
        for (long s = r * TILE; s < (r + 1) * TILE; s += LANES)
            store(rows->P + s, power(load(rows->P + s) - rows->lse[r]));
}

/* G of the tile on the diagonal, weights in P, by backward substitution, and W. */
static void backward_tile(const struct backward_rows *rows, float *G, long width, float gamma,
                          int drop) {
    for (long a = TILE - RUN; a >= 0; a -= RUN) {
        const long after = a + RUN;
        transposed_times(RUN, width, TILE - after, rows->P + after * TILE + a, TILE,
                         rows->W + after * width, width, G + a * width, width, 1);
        for (long s = after - 1; s >= a; s--) {
            const float own = rows->P[s * TILE + s], rest = drop ? 1 : 1 / (1 - gamma * own);
            for (long c = 0; c < width; c += LANES) {
                const vec dH = load(rows->dH + s * width + c);
                vec g = load(G + s * width + c) + own * dH;
                for (long r = s + 1; r < after; r++)
                    g += rows->P[r * TILE + s] * load(rows->W + r * width + c);
                g *= rest;
                store(G + s * width + c, g);
                store(rows->W + s * width + c, dH + gamma * g);
            }
        }
    }
}

/* dS, where it holds dA, of so many rows, and what they send to dK and their own dQ. */
static void send_slope(const struct backward_rows *rows, const struct key_tile *at, long count,
                       long wide) {
    for (long r = 0; r < count; r++)
        for (long s = r * TILE; s < (r + 1) * TILE; s += LANES)
            store(rows->dS + s, load(rows->P + s) * (load(rows->dS + s) - rows->delta[r]));
    transposed_times(TILE, wide, count, rows->dS, TILE, rows->Q, wide, at->dK, wide, 1);
    times(count, wide, TILE, rows->dS, TILE, at->K, wide, rows->dQ, wide, 1);
}

/* Rows to which all later rows have sent, scores over their own keys in P: G, W, and what they send
   to each other. Gives their share of dγ. */
static double solve_rows(struct backward_rows *rows, const struct key_tile *at,
                       const struct backward_call *call, long head) {
    const long d_v = call->d_v, wide = up(call->d, LANES), width = up(d_v, LANES);
    const float gamma = call->gamma[head];
    float hop[TILE];
    double dgamma = 0;
    whole_weights(rows, TILE);
    backward_tile(rows, at->G, width, gamma, call->drop);
    for (long r = 0; r < TILE; r++) {
        const float *H = rows->H + r * width;
        rows->delta[r] = dot(rows->W + r * width, H, width);
        dgamma += dot(at->G + r * width, H, width);
        dgamma -= dot(rows->dH + r * width, H, width) / (1 - gamma);
        if (!call->drop) continue;
        const float hops = dot(at->G + r * width, at->Z + r * width, width);
        hop[r] = gamma * hops;
        rows->delta[r] -= hop[r] * at->own[r];
        dgamma -= hops * at->own[r];
    }
    times(TILE, TILE, d_v, rows->W, width, at->Zt, TILE, rows->dS, TILE, 0);
    for (long r = 0; r < TILE; r++) {
        for (long s = r + 1; s < TILE; s++) rows->dS[r * TILE + s] = 0;
        if (call->drop) rows->dS[r * TILE + r] -= hop[r];
    }
    send_slope(rows, at, TILE, wide);
    return dgamma;
}

/* Scores of so many rows over a tile of keys, in P. */
static void rows_scores(const struct backward_rows *rows, const struct key_tile *at, long count,
                        long d) {
    times(count, TILE, d, rows->Q, up(d, LANES), at->Kt, TILE, rows->P, TILE, 0);
}

/* So many rows, solved, with scores over a tile of keys in P, send to these. */
static void send(struct backward_rows *rows, const struct key_tile *at, long count, long d,
                 long d_v) {
    const long wide = up(d, LANES), width = up(d_v, LANES);
    times(count, TILE, d_v, rows->W, width, at->Zt, TILE, rows->dS, TILE, 0);
    whole_weights(rows, count);
    transposed_times(TILE, width, count, rows->P, TILE, rows->W, width, at->G, width, 1);
    send_slope(rows, at, count, wide);
}

/* Nobody sends to the tile from `a` on any more: gradients to where the caller wants them. */
static void end_rows(const struct backward_rows *rows, const struct key_tile *at,
                     const struct backward_call *call, long head, long a) {
    const long d = call->d, d_v = call->d_v, wide = up(d, LANES);
    const long count = MIN(call->n - a, TILE), to = head * call->n + a;
    empty(call->dq + to * d, rows->dQ, wide, count, d, call->scale);
    empty(call->dk + to * d, at->dK, wide, count, d, call->scale);
    empty(call->dv + to * d_v, at->G, up(d_v, LANES), count, d_v, 1);
}
