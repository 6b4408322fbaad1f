/* The routed resolvent's forward pass, and its choice of tiles; the twin of ops/routed.py.

A row sees its own tile of keys and the `near` tiles before it, and far tiles that it chose. (The
view's tiles have any size; tiles of rows are those of tiles.h.) Near keys go as in resolvent.c,
with those hidden that are none of a row's. A tile that is solved is pushed to the rows that chose
it, 64 of them at a time, so that products are of whole tiles and no row copies keys. A chosen tile
that ends among a row's own 64 is not solved before these, and is seen as near ones are.

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

/* Who chose which tile, and what rows that are not solved have seen of theirs. */
struct far_room {
    float *H, *most, *mass; /* (n, d_v), filled up, and (n) */
    int32_t *first, *rows;  /* rows[first[J]] to rows[first[J + 1]] are those to whom J is pushed */
    long pushed;            /* tiles */
};

static long far_size(const struct routed_call *call) {
    const long n = up(call->rows.n, TILE);
    return n * (up(call->rows.d_v, LANES) + 2) + call->rows.n * (call->routes + 1) + 2;
}

/* The first row of the 64 that row r is solved with. */
static long together(long r) { return r / TILE * TILE; }

static struct far_room far_room(const struct routed_call *call, const int64_t *chosen,
                                float *room) {
    const long n = up(call->rows.n, TILE), width = up(call->rows.d_v, LANES);
    const long tiles = call->rows.n / call->tile, routes = call->routes;
    struct far_room far = {.H = room};
    far.most = far.H + n * width, far.mass = far.most + n;
    far.first = (int32_t *)(far.mass + n), far.rows = far.first + tiles + 2;
    memset(far.H, 0, n * width * sizeof(float));
    for (long r = 0; r < n; r++) far.most[r] = -INFINITY, far.mass[r] = 0;
    memset(far.first, 0, (tiles + 2) * sizeof(int32_t));
    /* counted two places on, so that filling the lists moves every count to where its list begins */
    for (int fills = 0; fills < 2; fills++) {
        for (long i = 0; i < call->rows.n * routes; i++) {
            const long J = chosen[i], r = i / routes;
            if (J < 0 || (J + 1) * call->tile > together(r)) continue;
            if (fills)
                far.rows[far.first[J + 1]++] = (int32_t)r;
            else
                far.first[J + 2]++;
        }
        for (long J = 2; !fills && J < tiles + 2; J++) far.first[J] += far.first[J - 1];
    }
    return far;
}

/* Keys `first` to `last`, all solved, are seen by the `count` rows whose places are given. */
static void push(struct forward_room *at, const struct routed_call *call, struct far_room *far,
                 long head, const int32_t *rows, long count, long first, long last) {
    const struct view q = call->rows.q;
    const long d = call->rows.d, width = up(call->rows.d_v, LANES), all = up(count, ROWS);
    for (long i = 0; i < all; i++) {
        const long r = rows[MIN(i, count - 1)]; /* places that are left do as the last row */
        memcpy(at->Q + i * d, q.data + head * q.head + r * q.row, d * sizeof(float));
        memcpy(at->H + i * width, far->H + r * width, width * sizeof(float));
        at->most[i] = far->most[r], at->mass[i] = far->mass[r];
    }
    for (long b = together(first); b < last; b += CHUNK * TILE) {
        const long keys = MIN(up(last - b, TILE), CHUNK * TILE);
        for (long s = 0; s < keys; s += TILE) score(at, all, b + s, d, s);
        for (long i = 0; i < all; i++) {
            float *S = at->S + i * CHUNK * TILE;
            for (long s = 0; s < first - b; s++) S[s] = -INFINITY;
            for (long s = last - b; s < keys; s++) S[s] = -INFINITY;
        }
        weigh(at, all, keys, width);
        take(at, all, b, keys, width);
    }
    for (long i = 0; i < count; i++) {
        const long r = rows[i];
        memcpy(far->H + r * width, at->H + i * width, width * sizeof(float));
        far->most[r] = at->most[i], far->mass[r] = at->mass[i];
    }
}

/* All tiles that end before `end`, solved, go to the rows that chose them. */
static void push_tiles(struct forward_room *at, const struct routed_call *call,
                       struct far_room *far, long head, long end) {
    const long tile = call->tile;
    for (; (far->pushed + 1) * tile <= end; far->pushed++) {
        const long first = far->pushed * tile, last = far->first[far->pushed + 1];
        for (long i = far->first[far->pushed]; i < last; i += TILE)
            push(at, call, far, head, far->rows + i, MIN(last - i, TILE), first, first + tile);
    }
}

/* Whether row r chose tile J, and is solved with keys of it, so that it is not pushed to the row. */
static int sees(const struct routed_call *call, const int64_t *chosen, long r, long J) {
    if ((J + 1) * call->tile <= together(r)) return 0;
    for (long route = 0; route < call->routes; route++)
        if (chosen[r * call->routes + route] == J) return 1;
    return 0;
}

/* The first key that any of the 64 rows from `a` on sees, of those that are not pushed. */
static long first_seen(const struct routed_call *call, const int64_t *chosen, long a) {
    const long cut = a / call->tile; /* the one tile that such a row may have chosen in part */
    long first = first_near(call, a);
    for (long r = a; cut * call->tile < first && r < MIN(a + TILE, call->rows.n); r++)
        if (sees(call, chosen, r, cut)) first = cut * call->tile;
    return first;
}

/* Of rows from `a` on, scores of the keys from `b` on that they do not see become -inf. */
static void hide(struct forward_room *at, const struct routed_call *call, const int64_t *chosen,
                 long a, long b, long keys) {
    for (long r = a; r < a + TILE; r++) {
        float *S = at->S + (r - a) * CHUNK * TILE;
        const long unseen = MIN(first_near(call, r) - b, keys);
        for (long s = 0, next; s < unseen; s = next) {
            const long J = (b + s) / call->tile;
            next = MIN((J + 1) * call->tile - b, unseen);
            if (r < call->rows.n && sees(call, chosen, r, J)) continue;
            for (long i = s; i < next; i++) S[i] = -INFINITY;
        }
        for (long s = MAX(r + 1 - b, 0); s < keys; s++) S[s] = -INFINITY;
    }
}

static void routed_head(const void *argument, long head, float *room) {
    const struct routed_call *call = argument;
    const struct forward_call *rows = &call->rows;
    const long n = up(rows->n, TILE), d = rows->d, width = up(rows->d_v, LANES);
    const int64_t *chosen = call->chosen + head * rows->n * call->routes;
    struct forward_room all[GROUP], at;
    forward_rooms(rows, room, all);
    at = all[0];
    struct far_room far = far_room(call, chosen, room + forward_size(rows));
    for (long a = 0; a < n; a += TILE) {
        begin_tile(&at, rows, head, a);
        memcpy(at.H, far.H + a * width, TILE * width * sizeof(float));
        memcpy(at.most, far.most + a, TILE * sizeof(float));
        memcpy(at.mass, far.mass + a, TILE * sizeof(float));
        for (long b = together(first_seen(call, chosen, a)); b < a; b += CHUNK * TILE) {
            const long keys = MIN(a - b, CHUNK * TILE);
            for (long s = 0; s < keys; s += TILE) score(&at, TILE, b + s, d, s);
            hide(&at, call, chosen, a, b, keys);
            weigh(&at, TILE, keys, width);
            take(&at, TILE, b, keys, width);
        }
        score(&at, TILE, a, d, 0);
        hide(&at, call, chosen, a, a, TILE);
        weigh(&at, TILE, TILE, width);
        forward_tile(&at, at.Z + a * width, width, rows->gamma[head], rows->drop);
        end_tile(&at, rows, head, a, 0.69314718055994531);
        push_tiles(&all[1], call, &far, head, MIN(a + TILE, rows->n));
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
        (struct crew){routed_head, call, call->rows.heads, forward_size(&call->rows) + far_size(call), 0},
        threads);
}

int chacal_choose(const struct choice_call *call, int threads) {
    return all_heads((struct crew){choose_head, call, call->heads, choice_size(call), 0},
                     threads);
}
