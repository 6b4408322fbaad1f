/* Exact ChaCAL in float32 on one processor, compiled where it runs; the twin of ops/streaming.py.

With H = A Z: Z = V + γ H and Y = (1-γ) H. A head is solved in tiles of 64 rows, in order. A tile
attends to all tiles before it, which are solved, as in ordinary flash attention: products of 64 x
64 numbers that stay in the cache, and a running maximum of the scores. Its own square on the
diagonal is the head of a triangular system: 8 rows at a time take what rows before them pass on by
one more product, and only what is left inside these 8 is done row by row.

The backward pass is the transposed system, last tile first. With W = (1-γ) dY + γ G:

    G = Aᵀ W,   dA = W Zᵀ,   dS = A ∘ (dA - W·H)

What it is made of is in tiles.h.
*/

#include "tiles.h"

struct backward_call {
    struct view q, k, v, H, dY;
    const float *gamma, *lse; /* lse in powers of two */
    float *dq, *dk, *dv;
    long heads, n, d, d_v;
    float scale;
    int drop;
};

/* ---- forward ------------------------------------------------------------------------------- */

/* The tile's rows attend to keys `from` to `to`, all solved. */
static void see(struct forward_room *at, long from, long to, long d, long width) {
    for (long b = from; b < to; b += CHUNK * TILE) {
        const long keys = MIN(to - b, CHUNK * TILE);
        for (long s = 0; s < keys; s += TILE) score(at, TILE, b + s, d, s);
        weigh(at, TILE, keys, width);
        take(at, TILE, b, keys, width);
    }
}

static void forward_head(const void *argument, long head, float *room) {
    const struct forward_call *call = argument;
    const long n = up(call->n, TILE), d = call->d, width = up(call->d_v, LANES);
    struct forward_room rooms[GROUP];
    forward_rooms(call, room, rooms);
    for (long first = 0; first < n; first += GROUP * TILE) {
        const long last = MIN(first + GROUP * TILE, n);
        for (long a = first; a < last; a += TILE)
            begin_tile(&rooms[(a - first) / TILE], call, head, a);
        /* keys before the group: each comes into the cache once for all of its rows */
        for (long b = 0; b < first; b += CHUNK * TILE)
            for (long a = first; a < last; a += TILE)
                see(&rooms[(a - first) / TILE], b, MIN(b + CHUNK * TILE, first), d, width);
        for (long a = first; a < last; a += TILE) {
            struct forward_room *at = &rooms[(a - first) / TILE];
            see(at, first, a, d, width);
            score(at, TILE, a, d, 0);
            hide_later(at->S, CHUNK * TILE, -INFINITY);
            weigh(at, TILE, TILE, width);
            forward_tile(at, at->Z + a * width, width, call->gamma[head], call->drop);
            end_tile(at, call, head, a, 1);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------ */

/* Keys, and what later rows sent them: of a whole head, filled up. */
struct backward_room {
    float *Kt, *Zt;   /* (tiles, d, TILE) and (tiles, d_v, TILE); Kt times scale · log2 e */
    float *K, *Z;     /* (n, d) and (n, d_v) */
    float *G, *dK;    /* as long as Z and K */
    float *lse, *own; /* (n): log-sum-exps in powers of two; of `drop`, A's diagonal */
    float *P, *dS;    /* (TILE, TILE) */
};

/* One tile of rows. */
struct backward_rows {
    float *Q, *H, *W, *dH, *dQ;
    float delta[TILE];
};

static long backward_size(const struct backward_call *call) {
    long n = up(call->n, TILE), wide = up(call->d, LANES), width = up(call->d_v, LANES);
    return n * (call->d + call->d_v + 2 * wide + 2 * width + 2) + 2 * TILE * TILE +
           GROUP * TILE * (2 * wide + 3 * width);
}

static struct backward_room backward_room(const struct backward_call *call, float *room,
                                          struct backward_rows *rows) {
    const long n = up(call->n, TILE), wide = up(call->d, LANES), width = up(call->d_v, LANES);
    struct backward_room at = {.Kt = room};
    at.Zt = at.Kt + n * call->d, at.K = at.Zt + n * call->d_v, at.Z = at.K + n * wide;
    at.G = at.Z + n * width, at.dK = at.G + n * width, at.lse = at.dK + n * wide;
    at.own = at.lse + n, at.P = at.own + n, at.dS = at.P + TILE * TILE;
    float *next = at.dS + TILE * TILE;
    for (int i = 0; i < GROUP; i++) {
        rows[i].Q = next, rows[i].dQ = rows[i].Q + TILE * wide;
        rows[i].H = rows[i].dQ + TILE * wide, rows[i].W = rows[i].H + TILE * width;
        rows[i].dH = rows[i].W + TILE * width, next = rows[i].dH + TILE * width;
    }
    memset(at.G, 0, n * width * sizeof(float));
    memset(at.dK, 0, n * wide * sizeof(float));
    return at;
}

static float dot(const float *a, const float *b, long width) {
    vec total = {};
    for (long c = 0; c < width; c += LANES) total += load(a + c) * load(b + c);
    return sum(total);
}

/* G of the tile on the diagonal, weights in P, by backward substitution, and W. */
static void backward_tile(const struct backward_room *at, const struct backward_rows *rows,
                          float *G, long width, float gamma, int drop) {
    for (long a = TILE - RUN; a >= 0; a -= RUN) {
        const long after = a + RUN;
        transposed_times(RUN, width, TILE - after, at->P + after * TILE + a, TILE,
                         rows->W + after * width, width, G + a * width, width, 1);
        for (long s = after - 1; s >= a; s--) {
            const float own = at->P[s * TILE + s], rest = drop ? 1 : 1 / (1 - gamma * own);
            for (long c = 0; c < width; c += LANES) {
                const vec dH = load(rows->dH + s * width + c);
                vec g = load(G + s * width + c) + own * dH;
                for (long r = s + 1; r < after; r++)
                    g += at->P[r * TILE + s] * load(rows->W + r * width + c);
                g *= rest;
                store(G + s * width + c, g);
                store(rows->W + s * width + c, dH + gamma * g);
            }
        }
    }
}

/* dS = P ∘ (dA - δ), where `dS` holds dA; P = 2^(S - lse), where `P` holds S, unless it is known. */
static void slope(const struct backward_room *at, const float *delta, const float *lse) {
    for (long r = 0; r < TILE; r++)
        for (long s = r * TILE; s < (r + 1) * TILE; s += LANES) {
            const vec P = lse ? power(load(at->P + s) - lse[r]) : load(at->P + s);
            if (lse) store(at->P + s, P);
            store(at->dS + s, P * (load(at->dS + s) - delta[r]));
        }
}

/* What rows send to dK and dQ, dS given; keys are those from `b` on. */
static void send_slope(const struct backward_room *at, const struct backward_rows *rows, long b,
                       long wide) {
    transposed_times(TILE, wide, TILE, at->dS, TILE, rows->Q, wide, at->dK + b * wide, wide, 1);
    times(TILE, wide, TILE, at->dS, TILE, at->K + b * wide, wide, rows->dQ, wide, 1);
}

/* Rows from `a` on, solved, send to keys from `b` on. */
static void send(const struct backward_room *at, const struct backward_rows *rows, long a, long b,
                 long d, long d_v) {
    const long wide = up(d, LANES), width = up(d_v, LANES);
    times(TILE, TILE, d, rows->Q, wide, at->Kt + b * d, TILE, at->P, TILE, 0);
    times(TILE, TILE, d_v, rows->W, width, at->Zt + b * d_v, TILE, at->dS, TILE, 0);
    slope(at, rows->delta, at->lse + a);
    transposed_times(TILE, width, TILE, at->P, TILE, rows->W, width, at->G + b * width, width, 1);
    send_slope(at, rows, b, wide);
}

/* Keys and Z of the tile from `a` on, transposed too, and its log-sum-exps. */
static void prepare(const struct backward_room *at, const struct backward_call *call, long head,
                    long a, const struct backward_rows *spare) {
    const long d = call->d, d_v = call->d_v, wide = up(d, LANES), width = up(d_v, LANES);
    const float gamma = call->gamma[head];
    float *K = at->K + a * wide, *Z = at->Z + a * width;
    fill(K, wide, call->k, head, a, call->n, d, 1);
    transpose(at->Kt + a * d, K, wide, d, call->scale * LOG2E);
    fill(Z, width, call->v, head, a, call->n, d_v, 1);
    fill(spare->H, width, call->H, head, a, call->n, d_v, gamma);
    if (call->drop) fill(spare->Q, wide, call->q, head, a, call->n, d, call->scale * LOG2E);
    for (long r = 0; r < TILE; r++) {
        const float lse = a + r < call->n ? call->lse[head * call->n + a + r] : 0;
        /* with `drop` H counts the hop to oneself and Z does not: Z = V + γ (H - A_tt Z) */
        float rest = 1;
        if (call->drop) {
            at->own[a + r] = exp2f(dot(spare->Q + r * wide, K + r * wide, wide) - lse);
            rest = 1 / (1 + gamma * at->own[a + r]);
        }
        at->lse[a + r] = lse;
        for (long c = r * width; c < (r + 1) * width; c += LANES)
            store(Z + c, (load(Z + c) + load(spare->H + c)) * rest);
    }
    transpose(at->Zt + a * d_v, Z, width, d_v, 1);
}

/* Rows from `a` on, to which all later rows have sent: G, W, and what they send to each other. */
static void solve_rows(const struct backward_room *at, const struct backward_call *call, long head,
                       long a, struct backward_rows *rows) {
    const long d = call->d, d_v = call->d_v, wide = up(d, LANES), width = up(d_v, LANES);
    const float gamma = call->gamma[head];
    float *G = at->G + a * width, hop[TILE];
    fill(rows->Q, wide, call->q, head, a, call->n, d, 1);
    fill(rows->H, width, call->H, head, a, call->n, d_v, 1);
    fill(rows->dH, width, call->dY, head, a, call->n, d_v, 1 - gamma);
    memset(rows->dQ, 0, TILE * wide * sizeof(float));
    times(TILE, TILE, d, rows->Q, wide, at->Kt + a * d, TILE, at->P, TILE, 0);
    for (long r = 0; r < TILE; r++)
        for (long s = r * TILE; s < (r + 1) * TILE; s += LANES)
            store(at->P + s, power(load(at->P + s) - at->lse[a + r]));
    hide_later(at->P, TILE, 0);
    backward_tile(at, rows, G, width, gamma, call->drop);
    for (long r = 0; r < TILE; r++) {
        rows->delta[r] = dot(rows->W + r * width, rows->H + r * width, width);
        if (!call->drop) continue;
        hop[r] = gamma * dot(G + r * width, at->Z + (a + r) * width, width);
        rows->delta[r] -= hop[r] * at->own[a + r];
    }
    times(TILE, TILE, d_v, rows->W, width, at->Zt + a * d_v, TILE, at->dS, TILE, 0);
    hide_later(at->dS, TILE, 0);
    if (call->drop)
        for (long r = 0; r < TILE; r++) at->dS[r * TILE + r] -= hop[r];
    slope(at, rows->delta, NULL);
    send_slope(at, rows, a, wide);
}

static void backward_head(const void *argument, long head, float *room) {
    const struct backward_call *call = argument;
    const long n = up(call->n, TILE), d = call->d, d_v = call->d_v;
    const long wide = up(d, LANES), width = up(d_v, LANES);
    struct backward_rows rows[GROUP];
    const struct backward_room at = backward_room(call, room, rows);
    for (long a = 0; a < n; a += TILE) prepare(&at, call, head, a, rows);
    for (long first = (n - 1) / (GROUP * TILE) * (GROUP * TILE); first >= 0; first -= GROUP * TILE) {
        const long last = MIN(first + GROUP * TILE, n);
        for (long a = last - TILE; a >= first; a -= TILE) {
            solve_rows(&at, call, head, a, &rows[(a - first) / TILE]);
            for (long b = first; b < a; b += TILE)
                send(&at, &rows[(a - first) / TILE], a, b, d, d_v);
        }
        /* keys before the group: each comes into the cache once for all of its rows */
        for (long b = 0; b < first; b += TILE)
            for (long a = first; a < last; a += TILE)
                send(&at, &rows[(a - first) / TILE], a, b, d, d_v);
        for (long a = first; a < last; a += TILE) {
            const long count = MIN(call->n - a, TILE), to = head * call->n + a;
            empty(call->dq + to * d, rows[(a - first) / TILE].dQ, wide, count, d, call->scale);
            empty(call->dv + to * d_v, at.G + a * width, width, count, d_v, 1);
            empty(call->dk + to * d, at.dK + a * wide, wide, count, d, call->scale);
        }
    }
}

/* ---- what Python calls --------------------------------------------------------------------- */

int chacal_forward(const struct forward_call *call, int threads) {
    return all_heads((struct crew){forward_head, call, call->heads, forward_size(call), 0},
                     threads);
}

int chacal_backward(const struct backward_call *call, int threads) {
    return all_heads((struct crew){backward_head, call, call->heads, backward_size(call), 0},
                     threads);
}
