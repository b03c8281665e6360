// What group and batch normalisation share: passes over a matrix of floats, column by column.
//
// The second pass over a group or channel goes from the end to the beginning: what the first one read last is in cache.
//
// Sums of x and x^2 are about a shift: the mean of the first four of every 64 rows. A shift out of the chunk bounds the
// cancellation, whatever the mean: the sum of squares is at most 1 + 64 / 4 times the one about the chunk's own mean.
// From chunk to chunk the sums go on in double.
#pragma once
#include "core/ops.h"
#include "layers/columns.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t CHUNK = 64;   // rows
constexpr int64_t NARROW = 32;  // columns: enough for four vectors of eight
constexpr int64_t WIDE = 256;   // columns at a time, up to twice that for the last
constexpr int64_t SLOTS = 2 * WIDE + W;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows of columns that lie side by side, `stride` floats from row to row.
struct Matrix {
  int64_t rows, stride, columns;
};

// A matrix in chunks of rows, from the end on request: use(columns, offset of the first row, rows).
template <bool reverse, typename Use> inline void sweep(const Matrix& m, Use use) {
  const int64_t chunks = (m.rows + CHUNK - 1) / CHUNK;
  for (int64_t i = 0; i < chunks; i++) {
    const int64_t lo = (reverse ? chunks - 1 - i : i) * CHUNK;
    each_block(m.columns, [&](auto c) { use(c, lo * m.stride, smaller(CHUNK, m.rows - lo)); });
  }
}

// What one channel does to its columns: (x - mean) rstd gamma + beta.
struct Affine {
  const float *mean, *rstd;  // of every column
  float gamma, beta;
  Affine(const float* mean, const float* rstd, const float* gammas, const float* betas, int64_t channel)
      : mean(mean), rstd(rstd), gamma(gammas ? gammas[channel] : 1), beta(betas ? betas[channel] : 0) {}
};

inline float first_of(float x) { return x; }
inline float first_of(bf16 x) { return to_float(x); }

// Mean of every column, and the sum of the squares about it.
template <typename T> inline void moments(const Matrix& m, const T* x, double* mean, double* squares) {
  for (int64_t i = 0; i < num_slots(m.columns); i++) mean[i] = squares[i] = 0;
  sweep<false>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K, N = K * W;
    const T* p = x + at;
    vf shift[K], s[K], q[K];
    for (int k = 0; k < K; k++) shift[k] = s[k] = q[k] = vf{};
    const int64_t few = smaller(4, rows);
    for (int64_t r = 0; r < few; r++)
      for (int k = 0; k < K; k++) shift[k] += c.get(p + r * m.stride, k);
    for (int k = 0; k < K; k++) shift[k] *= 1.0f / few;
    for (int64_t r = 0; r < rows; r++, p += m.stride)
      for (int k = 0; k < K; k++) {
        const vf d = c.get(p, k) - shift[k];
        s[k] += d;
        q[k] += d * d;
      }
    float first[N], from[N], sum[N], square[N];
    for (int k = 0; k < K; k++) {
      store(first + k * W, c.get(x, k)), store(from + k * W, shift[k]);
      store(sum + k * W, s[k]), store(square + k * W, q[k]);
    }
    double one[N], two[N];
    for (int i = 0; i < N; i++) {  // from the chunk's shift to the first row
      const double d = double(from[i]) - first[i], shifted = sum[i];
      one[i] = shifted + rows * d;
      two[i] = square[i] + d * (2 * shifted + rows * d);
    }
    for (int i = 0; i < N; i++) mean[c.slot + i] += one[i];
    for (int i = 0; i < N; i++) squares[c.slot + i] += two[i];
  });
  compact(mean, m.columns), compact(squares, m.columns);
  const double share = 1 / double(m.rows);
  for (int64_t i = 0; i < m.columns; i++) squares[i] -= mean[i] * mean[i] * share;
  for (int64_t i = 0; i < m.columns; i++) mean[i] = first_of(x[i]) + mean[i] * share;
}

template <bool relu, typename T> void apply(const Matrix& m, Affine f, const T* x, T* y) {
  sweep<true>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K;
    vf mean[K], scale[K];
    for (int k = 0; k < K; k++) mean[k] = c.get(f.mean, k), scale[k] = c.get(f.rstd, k) * f.gamma;
    const vf beta = splat(f.beta);
    const T* from = x + at;
    T* to = y + at;
    for (int64_t r = 0; r < rows; r++, from += m.stride, to += m.stride)
      for (int k = 0; k < K; k++) {
        const vf v = (c.get(from, k) - mean[k]) * scale[k] + beta;
        c.put(to, k, relu ? positive(v) : v);
      }
  });
}

// Sums of dy and of dy (x - mean) over the rows; with relu, of the dy that pass it.
template <bool relu, typename T>
void sums(const Matrix& m, Affine f, const T* x, const T* dy, float* ones, float* products) {
  for (int64_t i = 0; i < num_slots(m.columns); i++) ones[i] = products[i] = 0;
  sweep<false>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K;
    vf mean[K], scale[K], s[K], q[K];
    for (int k = 0; k < K; k++) {
      mean[k] = c.get(f.mean, k), scale[k] = c.get(f.rstd, k) * f.gamma;
      s[k] = q[k] = vf{};
    }
    const vf beta = splat(f.beta);
    const T *p = x + at, *dp = dy + at;
    for (int64_t r = 0; r < rows; r++, p += m.stride, dp += m.stride)
      for (int k = 0; k < K; k++) {
        const vf d = c.get(p, k) - mean[k];
        vf g = c.get(dp, k);
        if (relu) g = where_positive(d * scale[k] + beta, g);
        s[k] += g;
        q[k] += g * d;
      }
    for (int k = 0; k < K; k++) {
      float *one = ones + c.slot + k * W, *product = products + c.slot + k * W;
      store(one, load(one) + s[k]), store(product, load(product) + q[k]);
    }
  });
  compact(ones, m.columns), compact(products, m.columns);
}

// dx = rstd gamma dy - a - (x - mean) b
template <bool relu, typename T>
void input_gradient(const Matrix& m, Affine f, const float* a, const float* b, const T* x, const T* dy, T* dx) {
  sweep<true>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K;
    vf mean[K], scale[K], constant[K], slope[K];
    for (int k = 0; k < K; k++) {
      mean[k] = c.get(f.mean, k), scale[k] = c.get(f.rstd, k) * f.gamma;
      constant[k] = c.get(a, k), slope[k] = c.get(b, k);
    }
    const vf beta = splat(f.beta);
    const T *p = x + at, *dp = dy + at;
    T* to = dx + at;
    for (int64_t r = 0; r < rows; r++, p += m.stride, dp += m.stride, to += m.stride)
      for (int k = 0; k < K; k++) {
        const vf d = c.get(p, k) - mean[k];
        vf g = c.get(dp, k);
        if (relu) g = where_positive(d * scale[k] + beta, g);
        c.put(to, k, g * scale[k] - (d * slope[k] + constant[k]));
      }
  });
}

inline double total(const float* p, int64_t n) {
  vf sums = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) sums += load(p + i);
  return sum(i < n ? sums + load_first(p + i, n - i) : sums);
}

}  // namespace
}  // namespace SPARSE_ISA
