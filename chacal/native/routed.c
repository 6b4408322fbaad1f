/* The routed resolvent's forward pass, and its choice of tiles; the twin of ops/routed.py.

A row sees its own tile of keys and the `near` tiles before it, and far tiles that it chose. (The
view's tiles have any size; tiles of rows are those of tiles.h.) Near keys go as in resolvent.c,
with those hidden that are none of a row's. What a row chose is its own, so that is done row by
row, a vector of keys at a time: a tile of keys and its Z lie in the cache, and no row ever copies
them. A chosen key among the same 64 rows is not solved yet, and belongs to the triangular system.

The choice is a product too, of queries and what stands for the tiles, of which each row keeps the
best few.
*/

#include "tiles.h"

struct routed_call {
    struct forward_call rows;
    const int64_t *chosen; /* (heads, n, routes) tiles, or -1 */
    long tile, near, routes;
};

struct choice_call {
    struct view q, summary; /* (heads, n, d) and (heads, tiles · parts, width) */
    int64_t *chosen;
    long heads, n, d, tiles, parts, width; /* width is d, or 2 d: see `bound` */
    long tile, near, routes;
    int bound; /* whether the query's positive and negative numbers are apart */
};

/* ---- what rows see ------------------------------------------------------------------------- */

/* The first key that row r sees by itself: `near` tiles before its own. */
static long first_near(const struct routed_call *call, long r) {
    const long first = (r / call->tile - call->near) * call->tile;
    return first > 0 ? first : 0;
}

enum { WIDE = 4 }; /* vectors that are summed at once: the processor adds while it waits for one */

/* S[from, from + WIDE vectors) = q K, of one row; K (d, TILE). */
static inline void row_scores(const float *q, const float *K, long from, long d, float *S) {
    vec s[WIDE] = {};
    for (long c = 0; c < d; c++)
#pragma GCC unroll 4
        for (int w = 0; w < WIDE; w++) s[w] += q[c] * load(K + c * TILE + from + w * LANES);
#pragma GCC unroll 4
    for (int w = 0; w < WIDE; w++) store(S + from + w * LANES, s[w]);
}

/* H[0, wide vectors) = H · less + weights Z, of one row. */
static inline __attribute__((always_inline)) void
row_take(const int wide, float *H, float less, const float *weights, const float *Z, long keys,
         long width) {
    vec h[WIDE];
#pragma GCC unroll 4
    for (int w = 0; w < wide; w++) h[w] = load(H + w * LANES) * less;
    for (long s = 0; s < keys; s++)
#pragma GCC unroll 4
        for (int w = 0; w < wide; w++) h[w] += weights[s] * load(Z + s * width + w * LANES);
#pragma GCC unroll 4
    for (int w = 0; w < wide; w++) store(H + w * LANES, h[w]);
}

/* Row r and 64 keys from `b` on, of which it sees those from `first` to `last`. */
static void see_piece(struct forward_room *at, long r, long b, long first, long last, long d,
                      long width) {
    float *H = at->H + r * width, S[TILE];
    const long step = MIN(WIDE * LANES, TILE);
    const long from = (first - b) / step * step, to = up(last - b, step);
    for (long s = from; s < to; s += step) row_scores(at->Q + r * d, at->K + b * d, s, d, S);
    for (long s = from; s < first - b; s++) S[s] = -INFINITY;
    for (long s = last - b; s < to; s++) S[s] = -INFINITY;
    vec most = (vec){} + at->most[r];
    for (long s = from; s < to; s += LANES) most = larger(load(S + s), most);
    const float before = at->most[r], now = largest(most), base = now == -INFINITY ? 0 : now;
    const float less = now > before ? exp2f(before - now) : 1;
    vec mass = {};
    for (long s = from; s < to; s += LANES) {
        const vec weight = power(load(S + s) - base);
        store(S + s, weight);
        mass += weight;
    }
    at->most[r] = now, at->mass[r] = at->mass[r] * less + sum(mass);
    const float *weights = S + first - b, *Z = at->Z + first * width;
    long c = 0;
    for (; c + WIDE * LANES <= width; c += WIDE * LANES)
        row_take(WIDE, H + c, less, weights, Z + c, last - first, width);
    for (; c < width; c += LANES) row_take(1, H + c, less, weights, Z + c, last - first, width);
}

/* What row r chose of the keys before `end`, which are solved. */
static void see_chosen(struct forward_room *at, const struct routed_call *call, const int64_t *J,
                       long r, long end) {
    const long d = call->rows.d, width = up(call->rows.d_v, LANES);
    for (long route = 0; route < call->routes; route++) {
        if (J[route] < 0) continue;
        const long first = J[route] * call->tile, last = MIN(first + call->tile, end);
        for (long b = first / TILE * TILE; b < last; b += TILE)
            see_piece(at, r, b, MAX(first, b), MIN(last, b + TILE), d, width);
    }
}

/* Of the square from row `a` on, scores of keys that its rows do not see become -inf. */
static void hide_square(struct forward_room *at, const struct routed_call *call,
                        const int64_t *chosen, long a) {
    for (long r = 0; r < TILE; r++) {
        float *S = at->S + r * CHUNK * TILE;
        const int64_t *J = a + r < call->rows.n ? chosen + r * call->routes : NULL;
        const long unseen = first_near(call, a + r) - a;
        for (long s = 0; s < unseen; s++) {
            int seen = 0;
            for (long route = 0; J && route < call->routes; route++)
                seen |= J[route] == (a + s) / call->tile;
            if (!seen) S[s] = -INFINITY;
        }
        for (long s = r + 1; s < TILE; s++) S[s] = -INFINITY;
    }
}

static void routed_head(const void *argument, long head, float *room) {
    const struct routed_call *call = argument;
    const struct forward_call *rows = &call->rows;
    const long n = up(rows->n, TILE), d = rows->d, width = up(rows->d_v, LANES);
    struct forward_room all[GROUP], at;
    forward_rooms(rows, room, all);
    at = all[0];
    for (long a = 0; a < n; a += TILE) {
        const int64_t *chosen = call->chosen + (head * rows->n + a) * call->routes;
        begin_tile(&at, rows, head, a);
        for (long b = first_near(call, a) / TILE * TILE; b < a; b += CHUNK * TILE) {
            const long keys = MIN(a - b, CHUNK * TILE);
            for (long s = 0; s < keys; s += TILE) score(&at, b + s, d, s);
            for (long r = 0; r < TILE; r++) {
                const long unseen = MIN(first_near(call, a + r) - b, keys);
                for (long s = 0; s < unseen; s++) at.S[r * CHUNK * TILE + s] = -INFINITY;
            }
            weigh(&at, keys, width);
            take(&at, b, keys, width);
        }
        for (long r = 0; r < MIN(rows->n - a, TILE); r++)
            see_chosen(&at, call, chosen + r * call->routes, r, a);
        score(&at, a, d, 0);
        hide_square(&at, call, chosen, a);
        weigh(&at, TILE, width);
        forward_tile(&at, at.Z + a * width, width, rows->gamma[head], rows->drop);
        end_tile(&at, rows, head, a, 0.69314718055994531);
    }
}

/* ---- the choice ---------------------------------------------------------------------------- */

struct choice_room {
    float *summary;  /* (tiles / TILE, parts, width, TILE): columns of 64 tiles, part by part */
    float *Q;        /* (TILE, width) */
    float *S, *best; /* (TILE, TILE) scores of a part, and of the best part */
    float *score;    /* (TILE, routes) of the tiles that are chosen so far, the best first */
    int64_t *tiles;  /* (TILE, routes) these */
};

static long choice_size(const struct choice_call *call) {
    return up(call->tiles, TILE) * call->parts * call->width + TILE * call->width +
           2 * TILE * TILE + TILE * call->routes * (1 + sizeof(int64_t) / sizeof(float)) + LANES;
}

/* Tile J, scored s, takes its place among a row's best. */
static void keep(float *score, int64_t *tiles, long routes, float s, long J) {
    long at = routes - 1;
    for (; at > 0 && score[at - 1] < s; at--) score[at] = score[at - 1], tiles[at] = tiles[at - 1];
    score[at] = s, tiles[at] = J;
}

static void choose_head(const void *argument, long head, float *room) {
    const struct choice_call *call = argument;
    const long d = call->d, width = call->width, parts = call->parts, routes = call->routes;
    struct choice_room at = {.summary = room};
    at.Q = at.summary + up(call->tiles, TILE) * parts * width;
    at.S = at.Q + TILE * width, at.best = at.S + TILE * TILE, at.score = at.best + TILE * TILE;
    at.tiles = (int64_t *)(room + up(at.score + TILE * routes - room, 2));
    for (long J = 0; J < up(call->tiles, TILE); J++)
        for (long p = 0; p < parts; p++) {
            const float *from = call->summary.data + head * call->summary.head +
                                (J * parts + p) * call->summary.row;
            float *to = at.summary + (J / TILE * parts + p) * width * TILE + J % TILE;
            for (long c = 0; c < width; c++) to[c * TILE] = J < call->tiles ? from[c] : 0;
        }
    for (long a = 0; a < call->n; a += TILE) {
        const long rows = MIN(call->n - a, TILE);
        fill(at.Q, width, call->q, head, a, call->n, d, 1);
        if (call->bound)
            for (long r = 0; r < TILE; r++)
                for (long c = 0; c < d; c++) {
                    float *q = at.Q + r * width + c;
                    q[d] = q[0] < 0 ? q[0] : 0, q[0] = q[0] > 0 ? q[0] : 0;
                }
        for (long i = 0; i < TILE * routes; i++) at.score[i] = -INFINITY, at.tiles[i] = -1;
        const long most = (a + rows - 1) / call->tile - call->near;
        for (long J = 0; J < most; J += TILE) {
            const float *summary = at.summary + J * parts * width;
            times(TILE, TILE, width, at.Q, width, summary, TILE, at.best, TILE, 0);
            for (long p = 1; p < parts; p++) {
                times(TILE, TILE, width, at.Q, width, summary + p * width * TILE, TILE, at.S, TILE, 0);
                for (long i = 0; i < TILE * TILE; i += LANES)
                    store(at.best + i, larger(load(at.S + i), load(at.best + i)));
            }
            for (long r = 0; r < rows; r++) {
                const float *S = at.best + r * TILE;
                float *score = at.score + r * routes;
                const long there = MIN((a + r) / call->tile - call->near - J, TILE);
                for (long s = 0; s < there; s += LANES) {
                    /* most often none of these is better than the worst that is kept */
                    if (!(largest(load(S + s)) > score[routes - 1])) continue;
                    for (long i = s; i < MIN(s + LANES, there); i++)
                        if (S[i] > score[routes - 1])
                            keep(score, at.tiles + r * routes, routes, S[i], J + i);
                }
            }
        }
        memcpy(call->chosen + (head * call->n + a) * routes, at.tiles,
               rows * routes * sizeof(int64_t));
    }
}

/* ---- what Python calls --------------------------------------------------------------------- */

int chacal_routed_forward(const struct routed_call *call, int threads) {
    return all_heads(
        (struct crew){routed_head, call, call->rows.heads, forward_size(&call->rows), 0},
        threads);
}

int chacal_choose(const struct choice_call *call, int threads) {
    return all_heads((struct crew){choose_head, call, call->heads, choice_size(call), 0},
                     threads);
}
