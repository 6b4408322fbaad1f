/* Exact ChaCAL in float32 on one processor, compiled where it runs; the twin of ops/streaming.py.

A head is solved in tiles of 64 rows, in order. A tile attends to all tiles before it, which are
solved, as in ordinary flash attention: products of 64 x 64 numbers that stay in the cache, and a
running maximum of the scores. Its own square on the diagonal is the head of a triangular system: 8
rows at a time take what rows before them pass on by one more product, and only what is left inside
these 8 is done row by row. The backward pass is the transposed system, last tile first.

What it is made of is in tiles.h, forward.h and backward.h.
*/

#include "backward.h"
#include "forward.h"

/* ---- forward ------------------------------------------------------------------------------- */

static long forward_size(const struct forward_call *call) {
    return up(call->n, TILE) * (call->d + up(call->d_v, LANES)) +
           GROUP * forward_rows_size(call) + SCORES;
}

/* The tile's rows attend to keys `from` to `to`, all solved. */
static void see(struct forward_room *at, const float *K, const float *Z, long from, long to, long d,
                long width) {
    for (long b = from; b < to; b += CHUNK * TILE) {
        const long keys = MIN(to - b, CHUNK * TILE);
        for (long s = 0; s < keys; s += TILE) score(at, TILE, K + (b + s) * d, d, s);
        weigh(at, TILE, keys, width);
        take(at, TILE, 0, Z + b * width, keys, width);
    }
}

static void forward_head(const void *argument, long head, float *room) {
    const struct forward_call *call = argument;
    const long n = up(call->n, TILE), d = call->d, width = up(call->d_v, LANES);
    float *K = room, *Z = K + n * d, *S = Z + n * width, *next = S + SCORES;
    struct forward_room rooms[GROUP];
    for (int i = 0; i < GROUP; i++) next = forward_rows(call, next, S, &rooms[i]);
    for (long first = 0; first < n; first += GROUP * TILE) {
        const long last = MIN(first + GROUP * TILE, n);
        for (long a = first; a < last; a += TILE)
            begin_tile(&rooms[(a - first) / TILE], call, head, a, K + a * d);
        /* keys before the group: each comes into the cache once for all of its rows */
        for (long b = 0; b < first; b += CHUNK * TILE)
            for (long a = first; a < last; a += TILE)
                see(&rooms[(a - first) / TILE], K, Z, b, MIN(b + CHUNK * TILE, first), d, width);
        for (long a = first; a < last; a += TILE) {
            struct forward_room *at = &rooms[(a - first) / TILE];
            see(at, K, Z, first, a, d, width);
            score(at, TILE, K + a * d, d, 0);
            hide_later(at->S, CHUNK * TILE, -INFINITY);
            weigh(at, TILE, TILE, width);
            forward_tile(at, Z + a * width, width, call->gamma[head], call->drop);
            end_tile(at, call, head, a);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------ */

static long backward_size(const struct backward_call *call) {
    return backward_shared_size(call) + GROUP * backward_rows_size(call) +
           up(call->n, TILE) / TILE * key_tile_size(call);
}

static void backward_head(const void *argument, long head, float *room) {
    const struct backward_call *call = argument;
    const long n = up(call->n, TILE), d = call->d, d_v = call->d_v, size = key_tile_size(call);
    struct backward_rows rows[GROUP];
    float *keys = backward_rows(call, head, room, rows, GROUP);
    double dgamma = 0;
    for (long a = 0; a < n; a += TILE) {
        const struct key_tile at = key_tile(call, keys + a / TILE * size);
        prepare(&at, call, head, a, rows);
    }
    for (long first = (n - 1) / (GROUP * TILE) * (GROUP * TILE); first >= 0; first -= GROUP * TILE) {
        const long last = MIN(first + GROUP * TILE, n);
        for (long a = last - TILE; a >= first; a -= TILE) {
            struct backward_rows *mine = &rows[(a - first) / TILE];
            struct key_tile at = key_tile(call, keys + a / TILE * size);
            begin_rows(mine, &at, call, head, a);
            hide_later(mine->P, TILE, -INFINITY);
            dgamma += solve_rows(mine, &at, call, head);
            for (long b = first; b < a; b += TILE) {
                at = key_tile(call, keys + b / TILE * size);
                rows_scores(mine, &at, TILE, d);
                send(mine, &at, TILE, d, d_v);
            }
        }
        /* keys before the group: each comes into the cache once for all of its rows */
        for (long b = 0; b < first; b += TILE) {
            const struct key_tile at = key_tile(call, keys + b / TILE * size);
            for (long a = first; a < last; a += TILE) {
                rows_scores(&rows[(a - first) / TILE], &at, TILE, d);
                send(&rows[(a - first) / TILE], &at, TILE, d, d_v);
            }
        }
        for (long a = first; a < last; a += TILE) {
            const struct key_tile at = key_tile(call, keys + a / TILE * size);
            end_rows(&rows[(a - first) / TILE], &at, call, head, a);
        }
    }
    call->dgamma[head] = dgamma;
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
