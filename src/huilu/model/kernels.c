/* The decoder's float32 steps for a few rows on a CPU: the products and small operators that torch is slow at.
 *
 * Called by kernels.py, which has the same functions in torch; tests hold the two against each other. A product of few
 * rows reads every weight once, where it lies, ahead of its use; a library packs the weights first, which at 8 rows
 * costs more than the product. A row's result does not depend on the other rows.
 *
 * Row-major, no argument is checked here. The file includes itself once for each instruction set; the first that the
 * processor has is used. Threads are OpenMP's, those that torch uses (one pool, since the library's name is the same).
 */
#ifndef NAME

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define LANES 16
typedef float lanes __attribute__((vector_size(64)));
typedef float loose __attribute__((vector_size(64), aligned(4), may_alias));
typedef int64_t i64;
#define INLINE static inline __attribute__((always_inline))
#define MOST_ROWS 8
#define MOST_VECS 3
#define DEEP 16
#define MOST_QUERIES 4
#define MOST_BLOCK 256
#define MOST_COLUMNS 768 /* of 8 rows: 24 KB */
#define WORTH_A_THREAD 65536 /* multiplications below which a second thread costs more than it brings */

typedef struct {
    const char *target;
    void (*linear)(const float *, i64, i64, const float *, i64, const float *, float *);
    void (*swiglu)(const float *, i64, i64, const float *, i64, float *);
    void (*head)(const float *, i64, i64, const float *, i64, float *);
    void (*norm)(const float *, i64, i64, const float *, float, float *);
    void (*rotate)(const float *, i64, i64, i64, i64, const float *, const float *, float *);
    void (*attend)(const float *, i64, i64, i64, i64, const float *, const float *, const i64 *, i64, const i64 *, i64,
                   float *);
} table;

#if defined(__x86_64__)
#define NAME(name) name##_avx512
#define TARGET "avx512"
#define ROWS 8
#define VECS 3
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
#include "kernels.c"
#pragma GCC pop_options
#undef NAME
#undef TARGET
#undef ROWS
#undef VECS
#define NAME(name) name##_avx2
#define TARGET "avx2"
#define ROWS 4
#define VECS 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include "kernels.c"
#pragma GCC pop_options
#undef NAME
#undef TARGET
#undef ROWS
#undef VECS
#endif
#define NAME(name) name##_base
#define TARGET "base"
#define ROWS 4
#define VECS 1
#include "kernels.c"

static const table *best(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq"))
        return &table_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &table_avx2;
#endif
    return &table_base;
}

/* Raised with every change of a signature or of what a function means; kernels.py refuses another. */
int huilu_kernels_version(void) { return 1; }

/* The instruction set in use. */
const char *huilu_kernels_target(void) { return best()->target; }

/* out[rows, width] = x[rows, depth] @ w[depth, width], plus residual[rows, width] unless that is null. */
void huilu_linear(const float *x, i64 rows, i64 depth, const float *w, i64 width, const float *residual, float *out) {
    best()->linear(x, rows, depth, w, width, residual, out);
}

/* out[rows, width] = silu(x @ w[0]) * (x @ w[1]), w[2, depth, width]. */
void huilu_swiglu(const float *x, i64 rows, i64 depth, const float *w, i64 width, float *out) {
    best()->swiglu(x, rows, depth, w, width, out);
}

/* out[rows, width] = x[rows, depth] @ w[width, depth] transposed. */
void huilu_head(const float *x, i64 rows, i64 depth, const float *w, i64 width, float *out) {
    best()->head(x, rows, depth, w, width, out);
}

/* out[rows, size] = x / sqrt(mean(x^2) + eps) * weight. */
void huilu_norm(const float *x, i64 rows, i64 size, const float *weight, float eps, float *out) {
    best()->norm(x, rows, size, weight, eps, out);
}

/* out[rows, heads, size] of the first `heads` of each row of x (rows `stride` apart): x * cos + (x2, x1) * sin with the
 * sign in sin[rows, size]. */
void huilu_rotate(const float *x, i64 rows, i64 stride, i64 heads, i64 size, const float *cosine, const float *sine,
                  float *out) {
    best()->rotate(x, rows, stride, heads, size, cosine, sine, out);
}

/* One query a row over its pages: q, out [rows, kv_heads * group, size]; keys and values [slot, kv_heads, size];
 * blocks[rows, width]; lengths[rows] in tokens. */
void huilu_attend(const float *q, i64 rows, i64 kv_heads, i64 group, i64 size, const float *keys, const float *values,
                  const i64 *blocks, i64 width, const i64 *lengths, i64 block_size, float *out) {
    best()->attend(q, rows, kv_heads, group, size, keys, values, blocks, width, lengths, block_size, out);
}

#else /* once for each instruction set */

/* e^x, within 2 units in the last place, 0 below -87 (Cephes' expf: range reduction by ln 2, then a polynomial). */
INLINE float NAME(exponential)(float x) {
    float kept = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float whole = __builtin_floorf(kept * 1.44269504088896341f + 0.5f);
    float rest = kept - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    float value = 1.9875691500e-4f;
    value = value * rest + 1.3981999507e-3f;
    value = value * rest + 8.3334519073e-3f;
    value = value * rest + 4.1665795894e-2f;
    value = value * rest + 1.6666665459e-1f;
    value = value * rest + 5.0000001201e-1f;
    value = value * rest * rest + rest + 1.0f;
    int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : value * power;
}

/* out += x[:, :depth] @ w for constant rows and vecs * LANES columns: every accumulator stays in a register. */
INLINE void NAME(tile)(const float *x, i64 ldx, i64 depth, const float *w, i64 ldw, float *out, i64 ldo, const int rows,
                       const int vecs) {
    lanes sum[MOST_ROWS][MOST_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 6
        for (int v = 0; v < vecs; v++) sum[r][v] = *(const loose *)(out + r * ldo + v * LANES);
    for (i64 k = 0; k < depth; k++) {
        lanes weight[MOST_VECS];
#pragma GCC unroll 6
        for (int v = 0; v < vecs; v++) {
            weight[v] = *(const loose *)(w + k * ldw + v * LANES);
            __builtin_prefetch(w + (k + DEEP) * ldw + v * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 6
            for (int v = 0; v < vecs; v++) sum[r][v] += x[r * ldx + k] * weight[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 6
        for (int v = 0; v < vecs; v++) *(loose *)(out + r * ldo + v * LANES) = sum[r][v];
}

INLINE void NAME(strip)(const float *x, i64 ldx, i64 depth, const float *w, i64 ldw, i64 width, float *out, i64 ldo,
                        const int rows, const int vecs) {
    i64 c = 0;
    for (; c + vecs * LANES <= width; c += vecs * LANES)
        NAME(tile)(x, ldx, depth, w + c, ldw, out + c, ldo, rows, vecs);
    for (; c + LANES <= width; c += LANES) NAME(tile)(x, ldx, depth, w + c, ldw, out + c, ldo, rows, 1);
    for (; c < width; c++)
        for (int r = 0; r < rows; r++)
            for (i64 k = 0; k < depth; k++) out[r * ldo + c] += x[r * ldx + k] * w[k * ldw + c];
}

/* out[rows, width] += x[rows, depth] @ w, for `width` columns of a matrix whose rows are ldw apart. DEEP rows of the
 * matrix at a time: whole columns would touch a page a row, where nothing reads ahead. */
static void NAME(part)(const float *x, i64 rows, i64 depth, const float *w, i64 ldw, i64 width, float *out, i64 ldo) {
    for (i64 k = 0; k < depth; k += DEEP) {
        i64 deep = k + DEEP < depth ? DEEP : depth - k, left = rows;
        const float *from = x + k;
        float *to = out;
#define STRIP(count) NAME(strip)(from, depth, deep, w + k * ldw, ldw, width, to, ldo, count, VECS)
        for (; left >= ROWS; left -= ROWS, from += ROWS * depth, to += ROWS * ldo) STRIP(ROWS);
        switch (left) {
        case 7: STRIP(7); break;
        case 6: STRIP(6); break;
        case 5: STRIP(5); break;
        case 4: STRIP(4); break;
        case 3: STRIP(3); break;
        case 2: STRIP(2); break;
        case 1: STRIP(1); break;
        }
#undef STRIP
    }
}

/* How many columns a thread takes at a time: few enough for the cache, and as equal as can be. */
INLINE i64 NAME(share)(i64 width) {
    i64 count = (width + MOST_COLUMNS - 1) / MOST_COLUMNS, threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    count = (count + threads - 1) / threads * threads;
    return ((width + count - 1) / count + LANES - 1) / LANES * LANES;
}

static void NAME(linear)(const float *x, i64 rows, i64 depth, const float *w, i64 width, const float *residual,
                         float *out) {
    i64 share = NAME(share)(width);
#pragma omp parallel for schedule(static) if (rows * depth * width > WORTH_A_THREAD)
    for (i64 from = 0; from < width; from += share) {
        i64 some = from + share < width ? share : width - from;
        for (i64 r = 0; r < rows; r++)
            if (residual)
                memcpy(out + r * width + from, residual + r * width + from, some * sizeof(float));
            else
                memset(out + r * width + from, 0, some * sizeof(float));
        NAME(part)(x, rows, depth, w + from, width, some, out + from, width);
    }
}

static void NAME(swiglu)(const float *x, i64 rows, i64 depth, const float *w, i64 width, float *out) {
    i64 share = NAME(share)(width);
#pragma omp parallel for schedule(static) if (rows * depth * width > WORTH_A_THREAD)
    for (i64 from = 0; from < width; from += share) {
        i64 some = from + share < width ? share : width - from;
        for (i64 r = 0; r < rows; r += MOST_ROWS) {
            i64 few = r + MOST_ROWS < rows ? MOST_ROWS : rows - r;
            float gate[MOST_ROWS * MOST_COLUMNS] __attribute__((aligned(64)));
            float up[MOST_ROWS * MOST_COLUMNS] __attribute__((aligned(64)));
            for (i64 i = 0; i < few * some; i++) gate[i] = up[i] = 0.0f;
            NAME(part)(x + r * depth, few, depth, w + from, width, some, gate, some);
            NAME(part)(x + r * depth, few, depth, w + depth * width + from, width, some, up, some);
            for (i64 i = 0; i < few; i++)
                for (i64 c = 0; c < some; c++) {
                    float g = gate[i * some + c];
                    out[(r + i) * width + from + c] = up[i * some + c] * g / (1.0f + NAME(exponential)(-g));
                }
        }
    }
}

INLINE float NAME(total)(lanes sum) {
    typedef float half __attribute__((vector_size(32)));
    typedef float quarter __attribute__((vector_size(16)));
    half two[2];
    memcpy(two, &sum, sizeof sum);
    two[0] += two[1];
    quarter four[2];
    memcpy(four, &two[0], sizeof four);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

/* out[rows, columns] of constant counts: dot products of rows of x and rows of w, depth a multiple of LANES. */
INLINE void NAME(dots)(const float *x, i64 depth, const float *w, float *out, i64 ldo, const int rows,
                       const int columns) {
    lanes sum[MOST_ROWS][MOST_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) sum[r][c] = (lanes){0};
    for (i64 k = 0; k < depth; k += LANES) {
        lanes weight[MOST_VECS];
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) {
            weight[c] = *(const loose *)(w + c * depth + k);
            __builtin_prefetch(w + (c + 2 * columns) * depth + k);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            lanes value = *(const loose *)(x + r * depth + k);
#pragma GCC unroll 3
            for (int c = 0; c < columns; c++) sum[r][c] += value * weight[c];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) out[r * ldo + c] = NAME(total)(sum[r][c]);
}

INLINE void NAME(head_part)(const float *x, i64 rows, i64 depth, const float *w, float *out, i64 ldo,
                            const int columns) {
    i64 r = 0;
#define DOTS(count) NAME(dots)(x + r * depth, depth, w, out + r * ldo, ldo, count, columns)
    for (; r + ROWS <= rows; r += ROWS) DOTS(ROWS);
    switch (rows - r) {
    case 7: DOTS(7); break;
    case 6: DOTS(6); break;
    case 5: DOTS(5); break;
    case 4: DOTS(4); break;
    case 3: DOTS(3); break;
    case 2: DOTS(2); break;
    case 1: DOTS(1); break;
    }
#undef DOTS
}

static void NAME(head)(const float *x, i64 rows, i64 depth, const float *w, i64 width, float *out) {
    i64 count = (width + VECS - 1) / VECS;
#pragma omp parallel for schedule(static) if (rows * depth * width > WORTH_A_THREAD)
    for (i64 b = 0; b < count; b++) {
        i64 from = b * VECS;
        if (from + VECS <= width)
            NAME(head_part)(x, rows, depth, w + from * depth, out + from, width, VECS);
        else
            for (i64 c = from; c < width; c++) NAME(head_part)(x, rows, depth, w + c * depth, out + c, width, 1);
    }
}

static void NAME(norm)(const float *x, i64 rows, i64 size, const float *weight, float eps, float *out) {
#pragma omp parallel for schedule(static) if (rows * size > WORTH_A_THREAD)
    for (i64 r = 0; r < rows; r++) {
        const float *row = x + r * size;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < size; i++) sum += row[i] * row[i];
        float scale = 1.0f / sqrtf(sum / (float)size + eps);
        for (i64 i = 0; i < size; i++) out[r * size + i] = row[i] * scale * weight[i];
    }
}

static void NAME(rotate)(const float *x, i64 rows, i64 stride, i64 heads, i64 size, const float *cosine,
                         const float *sine, float *out) {
#pragma omp parallel for schedule(static) if (rows * heads * size > WORTH_A_THREAD)
    for (i64 r = 0; r < rows; r++)
        for (i64 h = 0; h < heads; h++) {
            const float *from = x + r * stride + h * size, *c = cosine + r * size, *s = sine + r * size;
            float *to = out + (r * heads + h) * size;
            i64 half = size / 2;
            for (i64 i = 0; i < half; i++) {
                to[i] = from[i] * c[i] + from[i + half] * s[i];
                to[i + half] = from[i + half] * c[i + half] + from[i] * s[i + half];
            }
        }
}

/* score[query][token] = scale * q . k of constant queries over one page. */
INLINE void NAME(scores)(const float *q, const float *keys, i64 stride, i64 count, i64 size, float scale,
                         float (*score)[MOST_BLOCK], const int queries) {
    i64 t = 0;
#define SCORES(tokens)                                                                                                 \
    {                                                                                                                  \
        lanes sum[MOST_QUERIES][4];                                                                                    \
        for (int g = 0; g < queries; g++)                                                                              \
            for (int i = 0; i < tokens; i++) sum[g][i] = (lanes){0};                                                   \
        for (i64 c = 0; c < size; c += LANES)                                                                          \
            for (int i = 0; i < tokens; i++) {                                                                         \
                lanes key = *(const loose *)(keys + (t + i) * stride + c);                                             \
                for (int g = 0; g < queries; g++) sum[g][i] += *(const loose *)(q + g * size + c) * key;               \
            }                                                                                                          \
        for (int g = 0; g < queries; g++)                                                                              \
            for (int i = 0; i < tokens; i++) score[g][t + i] = scale * NAME(total)(sum[g][i]);                         \
        t += tokens;                                                                                                   \
    }
    while (t + 4 <= count) SCORES(4)
    while (t < count) SCORES(1)
#undef SCORES
}

/* Ask for one head's part of a page, which lies in pieces. */
INLINE void NAME(fetch)(const float *page, i64 stride, i64 count, i64 size) {
    for (i64 t = 0; t < count; t++)
        for (i64 c = 0; c < size; c += LANES) __builtin_prefetch(page + t * stride + c);
}

/* One row and one key/value head: constant queries over `length` tokens, page by page with a running maximum
 * (2112.05682), so that no buffer grows with the length. */
INLINE void NAME(attend_one)(const float *q, i64 kv_heads, i64 size, const float *keys, const float *values,
                             const i64 *blocks, i64 length, i64 block_size, float *out, const int queries) {
    const float scale = 1.0f / sqrtf((float)size);
    const i64 stride = kv_heads * size;
    float score[MOST_QUERIES][MOST_BLOCK], most[MOST_QUERIES], all[MOST_QUERIES];
    for (int g = 0; g < queries; g++) most[g] = -INFINITY, all[g] = 0.0f;
    memset(out, 0, queries * size * sizeof(float));
    for (i64 start = 0; start < length; start += block_size) {
        i64 count = length - start < block_size ? length - start : block_size;
        i64 first = blocks[start / block_size] * block_size * stride;
        float shrink[MOST_QUERIES];
        NAME(fetch)(values + first, stride, count, size);
        if (start + block_size < length)
            NAME(fetch)(keys + blocks[start / block_size + 1] * block_size * stride, stride, block_size, size);
        NAME(scores)(q, keys + first, stride, count, size, scale, score, queries);
        for (int g = 0; g < queries; g++) {
            float highest = most[g];
            for (i64 t = 0; t < count; t++) highest = score[g][t] > highest ? score[g][t] : highest;
            shrink[g] = most[g] == -INFINITY ? 0.0f : NAME(exponential)(most[g] - highest);
            most[g] = highest;
            for (i64 t = 0; t < count; t++) score[g][t] = NAME(exponential)(score[g][t] - highest);
            float sum = 0.0f;
            for (i64 t = 0; t < count; t++) sum += score[g][t];
            all[g] = all[g] * shrink[g] + sum;
        }
        for (i64 c = 0; c < size; c += LANES) {
            lanes sum[MOST_QUERIES];
            for (int g = 0; g < queries; g++) sum[g] = *(const loose *)(out + g * size + c) * shrink[g];
            for (i64 t = 0; t < count; t++) {
                lanes value = *(const loose *)(values + first + t * stride + c);
                for (int g = 0; g < queries; g++) sum[g] += score[g][t] * value;
            }
            for (int g = 0; g < queries; g++) *(loose *)(out + g * size + c) = sum[g];
        }
    }
    for (int g = 0; g < queries; g++)
        for (i64 i = 0; i < size; i++) out[g * size + i] /= all[g];
}

static void NAME(attend)(const float *q, i64 rows, i64 kv_heads, i64 group, i64 size, const float *keys,
                         const float *values, const i64 *blocks, i64 width, const i64 *lengths, i64 block_size,
                         float *out) {
#pragma omp parallel for schedule(dynamic, 1) if (rows > 1)
    for (i64 item = 0; item < rows * kv_heads; item++) {
        i64 head = item / rows, r = item % rows; /* rows that share pages one after the other */
        i64 place = (r * kv_heads + head) * group * size;
        const float *k = keys + head * size, *v = values + head * size;
        const i64 *pages = blocks + r * width;
        i64 g = 0;
#define ATTEND(count)                                                                                                  \
    NAME(attend_one)(q + place + g * size, kv_heads, size, k, v, pages, lengths[r], block_size, out + place + g * size, \
                     count)
        for (; g + MOST_QUERIES <= group; g += MOST_QUERIES) ATTEND(MOST_QUERIES);
        switch (group - g) {
        case 3: ATTEND(3); break;
        case 2: ATTEND(2); break;
        case 1: ATTEND(1); break;
        }
#undef ATTEND
    }
}

static const table NAME(table) = {TARGET, NAME(linear), NAME(swiglu), NAME(head), NAME(norm), NAME(rotate), NAME(attend)};

#endif
