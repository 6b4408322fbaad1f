/* The resolvent of rows that see few keys: a window, or near tiles and far ones that they chose.

The twin of ops/tiled.py (a window) and of ops/routed.py, forward and backward, in tiles of 64 rows
as resolvent.c. (A view's own tiles have any size.) Near keys are those of some tiles before the
rows', with those hidden that are none of a row's. They are kept, with Z and what is sent to them, in
a ring: what no row sees any more makes room for what is next, so a text may be of any length.

A far tile that is solved is pushed to the rows that chose it, 64 of them at a time, so that
products are of whole tiles and no row copies keys. On the way back these rows are solved before it,
and it pulls what they send. A chosen tile that ends among a row's own 64 is not solved before
these, and is seen as near ones are.
*/

#include "backward.h"
#include "forward.h"

/* What rows see; of a window, tile is any and routes 0. */
struct seen {
    const int64_t *chosen; /* (heads, n, routes) tiles, or -1 */
    long tile, near, routes, window;
};

struct sparse_forward_call {
    struct forward_call rows;
    struct seen seen;
};

struct sparse_backward_call {
    struct backward_call rows;
    struct seen seen;
};

/* ---- what rows see ------------------------------------------------------------------------- */

/* The first row of the 64 that row r is solved with. */
static long together(long r) { return r / TILE * TILE; }

/* The first key that row r sees by itself: `near` tiles before its own, or a window's first. */
static long first_near(const struct seen *seen, long r) {
    const long first = seen->window ? r - seen->window + 1
                                    : (r / seen->tile - seen->near) * seen->tile;
    return MAX(first, 0);
}

/* Whether row r chose tile J, and is solved with keys of it, so that it is not pushed to the row. */
static int sees(const struct seen *seen, const int64_t *chosen, long r, long J) {
    if ((J + 1) * seen->tile <= together(r)) return 0;
    for (long route = 0; route < seen->routes; route++)
        if (chosen[r * seen->routes + route] == J) return 1;
    return 0;
}

/* Of the 64 rows from `a` on, of n, scores of the keys from `b` on that they do not see become
   -inf; S has `ld` columns. */
static void hide(float *S, long ld, const struct seen *seen, const int64_t *chosen, long a, long n,
                 long b, long keys) {
    for (long r = a; r < a + TILE; r++, S += ld) {
        const long unseen = MIN(first_near(seen, r) - b, keys);
        for (long s = 0, next; s < unseen; s = next) {
            const long J = (b + s) / seen->tile;
            next = seen->routes ? MIN((J + 1) * seen->tile - b, unseen) : unseen;
            if (r < n && sees(seen, chosen, r, J)) continue;
            for (long i = s; i < next; i++) S[i] = -INFINITY;
        }
        for (long s = MAX(r + 1 - b, 0); s < keys; s++) S[s] = -INFINITY;
    }
}

/* Of so many rows, scores of keys before `first` and from `last` on, counted from the first one in
   S, become -inf. */
static void hide_around(float *S, long ld, long rows, long keys, long first, long last) {
    for (long i = 0; i < rows; i++, S += ld) {
        for (long s = 0; s < first; s++) S[s] = -INFINITY;
        for (long s = last; s < keys; s++) S[s] = -INFINITY;
    }
}

/* Who chose which tile: rows[first[J]] to rows[first[J + 1]] are those to whom J is pushed. */
struct pushes {
    int32_t *first, *rows;
};

static long pushes_size(const struct seen *seen, long n) {
    return seen->routes ? n / seen->tile + 2 + n * seen->routes : 0;
}

static struct pushes find_pushes(const struct seen *seen, const int64_t *chosen, long n,
                                 float *room) {
    const long tiles = n / seen->tile, routes = seen->routes;
    struct pushes to = {.first = (int32_t *)room};
    if (routes == 0) return to;
    to.rows = to.first + tiles + 2;
    memset(to.first, 0, (tiles + 2) * sizeof(int32_t));
    /* counted two places on, so that filling the lists moves every count to where its list begins */
    for (int fills = 0; fills < 2; fills++) {
        for (long i = 0; i < n * routes; i++) {
            const long J = chosen[i], r = i / routes;
            if (J < 0 || (J + 1) * seen->tile > together(r)) continue;
            if (fills)
                to.rows[to.first[J + 1]++] = (int32_t)r;
            else
                to.first[J + 2]++;
        }
        for (long J = 2; !fills && J < tiles + 2; J++) to.first[J] += to.first[J - 1];
    }
    return to;
}

/* Tiles of 64 keys of which some are in use at any time: near ones, and those of a far tile. */
static long ring_slots(const struct seen *seen, long n) {
    const long span = seen->window ? seen->window : (MIN(seen->near, n) + 1) * seen->tile;
    return MIN(up(span, TILE) / TILE + 2, up(n, TILE) / TILE);
}

struct ring {
    float *room;
    long slots, size; /* numbers of a slot */
};

static float *slot(struct ring ring, long b) { return ring.room + b / TILE % ring.slots * ring.size; }

/* ---- forward ------------------------------------------------------------------------------- */

static long slot_size(const struct forward_call *call) {
    return TILE * (call->d + up(call->d_v, LANES));
}

/* What rows that are not solved have seen of far tiles; Z comes after a slot's keys. */
struct far_room {
    struct ring ring;
    struct pushes to;
    float *H, *most, *mass; /* (n, d_v), filled up, and (n) */
    long pushed;            /* tiles */
};

static long far_size(const struct sparse_forward_call *call) {
    return call->seen.routes ? up(call->rows.n, TILE) * (up(call->rows.d_v, LANES) + 2) : 0;
}

static long sparse_forward_size(const struct sparse_forward_call *call) {
    return ring_slots(&call->seen, call->rows.n) * slot_size(&call->rows) + SCORES +
           forward_rows_size(&call->rows) + far_size(call) + pushes_size(&call->seen, call->rows.n);
}

/* Keys `first` to `last`, all solved, are seen by the `count` rows whose places are given. */
static void push(struct forward_room *at, const struct sparse_forward_call *call,
                 struct far_room *far, long head, const int32_t *rows, long count, long first,
                 long last) {
    const long d = call->rows.d, width = up(call->rows.d_v, LANES), all = up(count, ROWS);
    for (long i = 0; i < all; i++) {
        const long r = rows[MIN(i, count - 1)]; /* places that are left do as the last row */
        memcpy(at->Q + i * d, row(call->rows.q, head, r), d * sizeof(float));
        memcpy(at->H + i * width, far->H + r * width, width * sizeof(float));
        at->most[i] = far->most[r], at->mass[i] = far->mass[r];
    }
    for (long b = together(first); b < last; b += CHUNK * TILE) {
        const long keys = MIN(up(last - b, TILE), CHUNK * TILE);
        for (long s = 0; s < keys; s += TILE) score(at, all, slot(far->ring, b + s), d, s);
        hide_around(at->S, CHUNK * TILE, all, keys, first - b, last - b);
        weigh(at, all, keys, width);
        for (long s = 0; s < keys; s += TILE)
            take(at, all, s, slot(far->ring, b + s) + TILE * d, TILE, width);
    }
    for (long i = 0; i < count; i++) {
        const long r = rows[i];
        memcpy(far->H + r * width, at->H + i * width, width * sizeof(float));
        far->most[r] = at->most[i], far->mass[r] = at->mass[i];
    }
}

/* All tiles that end before `end`, solved, go to the rows that chose them. */
static void push_tiles(struct forward_room *at, const struct sparse_forward_call *call,
                       struct far_room *far, long head, long end) {
    const long tile = call->seen.tile;
    for (; (far->pushed + 1) * tile <= end; far->pushed++) {
        const long first = far->pushed * tile, last = far->to.first[far->pushed + 1];
        for (long i = far->to.first[far->pushed]; i < last; i += TILE)
            push(at, call, far, head, far->to.rows + i, MIN(last - i, TILE), first, first + tile);
    }
}

static void sparse_forward_head(const void *argument, long head, float *room) {
    const struct sparse_forward_call *call = argument;
    const struct forward_call *rows = &call->rows;
    const struct seen *seen = &call->seen;
    const long n = up(rows->n, TILE), d = rows->d, width = up(rows->d_v, LANES);
    const int64_t *chosen = seen->chosen + head * rows->n * seen->routes;
    struct forward_room at;
    struct far_room far = {.ring = {room, ring_slots(seen, rows->n), slot_size(rows)}};
    float *S = room + far.ring.slots * far.ring.size;
    far.H = forward_rows(rows, S + SCORES, S, &at);
    far.most = far.H + n * width, far.mass = far.most + n;
    far.to = find_pushes(seen, chosen, rows->n, far.H + far_size(call));
    if (seen->routes) {
        memset(far.H, 0, n * width * sizeof(float));
        for (long r = 0; r < n; r++) far.most[r] = -INFINITY, far.mass[r] = 0;
    }
    for (long a = 0; a < n; a += TILE) {
        float *K = slot(far.ring, a), *Z = K + TILE * d;
        begin_tile(&at, rows, head, a, K);
        if (seen->routes) {
            memcpy(at.H, far.H + a * width, TILE * width * sizeof(float));
            memcpy(at.most, far.most + a, TILE * sizeof(float));
            memcpy(at.mass, far.mass + a, TILE * sizeof(float));
        }
        for (long b = together(first_near(seen, a)); b < a; b += CHUNK * TILE) {
            const long keys = MIN(a - b, CHUNK * TILE);
            for (long s = 0; s < keys; s += TILE) score(&at, TILE, slot(far.ring, b + s), d, s);
            hide(at.S, CHUNK * TILE, seen, chosen, a, rows->n, b, keys);
            weigh(&at, TILE, keys, width);
            for (long s = 0; s < keys; s += TILE)
                take(&at, TILE, s, slot(far.ring, b + s) + TILE * d, TILE, width);
        }
        score(&at, TILE, K, d, 0);
        hide(at.S, CHUNK * TILE, seen, chosen, a, rows->n, a, TILE);
        weigh(&at, TILE, TILE, width);
        forward_tile(&at, Z, width, rows->gamma[head], rows->drop);
        end_tile(&at, rows, head, a);
        if (seen->routes) push_tiles(&at, call, &far, head, MIN(a + TILE, rows->n));
    }
}

/* ---- backward ------------------------------------------------------------------------------ */

static long sparse_backward_size(const struct sparse_backward_call *call) {
    const struct backward_call *rows = &call->rows;
    return backward_shared_size(rows) + backward_rows_size(rows) +
           ring_slots(&call->seen, rows->n) * key_tile_size(rows) + up(rows->n, TILE) +
           pushes_size(&call->seen, rows->n);
}

/* Keys `first` to `last` receive what the `count` rows whose places are given, all solved, send. */
static void pull(struct backward_rows *at, const struct backward_call *call, struct ring ring,
                 const float *delta, long head, const int32_t *rows, long count, long first,
                 long last) {
    const long d = call->d, d_v = call->d_v, wide = up(d, LANES), width = up(d_v, LANES);
    const long all = up(count, ROWS), head_row = head * call->n;
    const float gamma = call->gamma[head];
    for (long i = 0; i < all; i++) {
        const long r = rows[MIN(i, count - 1)];
        const float *q = row(call->q, head, r), *dY = row(call->dY, head, r);
        const float *G = call->dv + (head_row + r) * d_v;
        for (long c = 0; c < wide; c++) at->Q[i * wide + c] = c < d ? q[c] : 0;
        for (long c = 0; c < width; c++)
            at->W[i * width + c] = c < d_v ? (1 - gamma) * dY[c] + gamma * G[c] : 0;
        /* places that are left send nothing */
        at->lse[i] = i < count ? call->lse[head_row + r] : INFINITY, at->delta[i] = delta[r];
    }
    memset(at->dQ, 0, all * wide * sizeof(float));
    for (long b = together(first); b < last; b += TILE) {
        const struct key_tile keys = key_tile(call, slot(ring, b));
        rows_scores(at, &keys, all, d);
        hide_around(at->P, TILE, all, TILE, first - b, last - b);
        send(at, &keys, all, d, d_v);
    }
    for (long i = 0; i < count; i++) {
        float *dq = call->dq + (head_row + rows[i]) * d;
        for (long c = 0; c < d; c++) dq[c] += call->scale * at->dQ[i * wide + c];
    }
}

static void sparse_backward_head(const void *argument, long head, float *room) {
    const struct sparse_backward_call *call = argument;
    const struct backward_call *rows = &call->rows;
    const struct seen *seen = &call->seen;
    const long n = up(rows->n, TILE), d = rows->d, d_v = rows->d_v, tile = seen->tile;
    const int64_t *chosen = seen->chosen + head * rows->n * seen->routes;
    struct backward_rows at;
    struct ring ring = {.slots = ring_slots(seen, rows->n), .size = key_tile_size(rows)};
    ring.room = backward_rows(rows, head, room, &at, 1);
    float *delta = ring.room + ring.slots * ring.size;
    const struct pushes from = find_pushes(seen, chosen, rows->n, delta + n);
    double dgamma = 0;
    long ready = n;                               /* keys from here on are, or were, in the ring */
    long J = seen->routes ? rows->n / tile : 0; /* tiles from here on have pulled */
    for (long a = n - TILE; a >= 0; a -= TILE) {
        const long near = together(first_near(seen, a));
        const long far = seen->routes ? together(a / tile * tile) : near;
        while (ready > MIN(near, far)) {
            ready -= TILE;
            const struct key_tile keys = key_tile(rows, slot(ring, ready));
            prepare(&keys, rows, head, ready, &at);
        }
        for (; J > 0 && J * tile > a; J--)
            for (long i = from.first[J - 1]; i < from.first[J]; i += TILE)
                pull(&at, rows, ring, delta, head, from.rows + i, MIN(from.first[J] - i, TILE),
                     (J - 1) * tile, J * tile);
        const struct key_tile own = key_tile(rows, slot(ring, a));
        begin_rows(&at, &own, rows, head, a);
        hide(at.P, TILE, seen, chosen, a, rows->n, a, TILE);
        dgamma += solve_rows(&at, &own, rows, head);
        memcpy(delta + a, at.delta, TILE * sizeof(float));
        for (long b = a - TILE; b >= near; b -= TILE) {
            const struct key_tile keys = key_tile(rows, slot(ring, b));
            rows_scores(&at, &keys, TILE, d);
            hide(at.P, TILE, seen, chosen, a, rows->n, b, TILE);
            send(&at, &keys, TILE, d, d_v);
        }
        end_rows(&at, &own, rows, head, a);
    }
    rows->dgamma[head] = dgamma;
}

/* ---- what Python calls --------------------------------------------------------------------- */

int chacal_sparse_forward(const struct sparse_forward_call *call, int threads) {
    return all_heads((struct crew){sparse_forward_head, call, call->rows.heads,
                                   sparse_forward_size(call), 0},
                     threads);
}

int chacal_sparse_backward(const struct sparse_backward_call *call, int threads) {
    return all_heads((struct crew){sparse_backward_head, call, call->rows.heads,
                                   sparse_backward_size(call), 0},
                     threads);
}
