/* The routed resolvent's choice of tiles; the twin of `Routing.choose` in ops/routing.py.

A product of queries and of what stands for the tiles, of which each row keeps the best few.
*/

#include "tiles.h"

struct choice_call {
    struct view q, summary; /* (heads, n, d) and (heads, tiles · parts, width) */
    int64_t *chosen;
    long heads, n, d, tiles, parts, width; /* width is d, or 2 d: see `bound` */
    long tile, near, routes;
    int bound; /* whether the query's positive and negative numbers are apart */
};

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

/* What Python calls. */
int chacal_choose(const struct choice_call *call, int threads) {
    return all_heads((struct crew){choose_head, call, call->heads, choice_size(call), 0},
                     threads);
}
