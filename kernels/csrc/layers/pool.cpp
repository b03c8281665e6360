// Max and average pooling on batch-last tensors [channel][height][width][batch], forward and backward.
// A window is a few rows of the batch, so all work is on contiguous runs. Backward writes every input once: where no
// two windows share an input, each window writes its own; else every input asks the windows that hold it, in one order.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "layers/columns.h"

namespace SPARSE_ISA {
namespace {

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One vector of columns: a batch of whole vectors takes half the time of Columns.
struct OneVector {
  static constexpr int K = 1;
  int64_t at;
  template <typename T> vf get(const T* p, int) const { return load(p + at); }
  template <typename T> void put(T* p, int, vf v) const { store(p + at, v); }
  vi get(const int32_t* p, int) const { return load(p + at); }
  void put(int32_t* p, int, vi v) const { store(p + at, v); }
  vi get(const uint8_t* p, int) const { return load_bytes(p + at); }
  void put(uint8_t* p, int, vi v) const { store_bytes(p + at, v); }
};
template <typename Use> inline void each_vector(int64_t columns, Use use) {
  if (columns % W) return each_block(columns, use);
  for (int64_t i = 0; i < columns; i += W) use(OneVector{i});
}

struct Range {
  int64_t lo, hi;
};

// Inputs of output o.
inline Range inputs(const PoolAxis& a, int64_t o) {
  if (!a.kernel) return {o * a.in / a.out, up((o + 1) * a.in, a.out)};
  const int64_t start = o * a.stride - a.padding;
  return {larger(start, 0), smaller(start + a.kernel, a.in)};
}
// Outputs whose window holds input i.
inline Range outputs(const PoolAxis& a, int64_t i) {
  if (!a.kernel) return {i * a.out / a.in, up((i + 1) * a.out, a.in)};
  const int64_t before = i + a.padding - a.kernel + 1;
  return {before <= 0 ? 0 : up(before, a.stride), smaller((i + a.padding) / a.stride + 1, a.out)};
}

// The ranges of one axis: divisions once, not once a channel.
struct Ranges {
  const Scratch<Range> all;
  Ranges(const PoolAxis& axis, Range (*range)(const PoolAxis&, int64_t), int64_t count)
      : all(count, "the windows of a pooling layer") {
    for (int64_t i = 0; i < count; i++) all[i] = range(axis, i);
  }
  Range operator[](int64_t i) const { return all[i]; }
};

// Is every input of the axis in one window at most?
inline bool apart(const PoolAxis& a) { return a.kernel ? a.stride >= a.kernel : a.in % a.out == 0; }
// Two by two, side by side, nothing outside: a window without bounds to look up.
inline bool two(const PoolAxis& a) { return a.kernel == 2 && a.stride == 2 && a.padding == 0; }

// Channel by channel, for every output position: use(its windows' ranges, where x, where y).
template <typename Use> void for_outputs(const PoolShape& s, int threads, Use use) {
  const Ranges down(s.height, inputs, s.height.out), across(s.width, inputs, s.width.out);
  parallel_for(s.channels, threads, [&](int64_t channel) {
    int64_t to = channel * s.height.out * s.width.out * s.batch;
    for (int64_t i = 0; i < s.height.out; i++)
      for (int64_t j = 0; j < s.width.out; j++, to += s.batch)
        use(i, j, down[i], across[j], channel * s.height.in * s.width.in * s.batch, to);
  });
}

// The same for every input position and the outputs that see it.
template <typename Use> void for_inputs(const PoolShape& s, int threads, Use use) {
  const Ranges down(s.height, outputs, s.height.in), across(s.width, outputs, s.width.in);
  parallel_for(s.channels, threads, [&](int64_t channel) {
    int64_t to = channel * s.height.in * s.width.in * s.batch;
    for (int64_t i = 0; i < s.height.in; i++)
      for (int64_t j = 0; j < s.width.in; j++, to += s.batch)
        use(i, j, down[i], across[j], channel * s.height.out * s.width.out * s.batch, to);
  });
}

// Calls write(its windows' ranges, where y, where dx) for every output, and writes zeros to inputs of no window. A
// window is never empty and the first begins at input 0, so inputs of no window only follow one.
template <typename T, typename Write> void for_windows_apart(const PoolShape& s, T* dx, int threads, Write write) {
  const Ranges down(s.height, inputs, s.height.out), across(s.width, inputs, s.width.out);
  const int64_t rows = s.height.out, columns = s.width.out, row = s.width.in * s.batch;
  const auto clear = [](T* from, int64_t n) {
    if (n > 0) memset(from, 0, n * sizeof(T));
  };
  parallel_for(s.channels, threads, [&](int64_t channel) {
    T* plane = dx + channel * s.height.in * row;
    int64_t from = channel * rows * columns * s.batch;
    for (int64_t i = 0; i < rows; i++) {
      for (int64_t j = 0; j < columns; j++, from += s.batch) {
        write(i, j, down[i], across[j], from, plane);
        const int64_t end = across[j].hi, gap = (j + 1 < columns ? across[j + 1].lo : s.width.in) - end;
        if (gap > 0)
          for (int64_t h = down[i].lo; h < down[i].hi; h++) clear(plane + h * row + end * s.batch, gap * s.batch);
      }
      clear(plane + down[i].hi * row, ((i + 1 < rows ? down[i + 1].lo : s.height.in) - down[i].hi) * row);
    }
  });
}

// The largest so far and its tap: the first maximum, as torch; a NaN wins.
// Masks by name on AVX-512.
#if SPARSE_LANES == 16
inline void see(vf v, vi tap, vf& best, vi& at) {
  const __mmask16 take =
      _mm512_cmp_ps_mask((__m512)v, (__m512)best, _CMP_GT_OQ) | _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  best = (vf)_mm512_mask_blend_ps(take, (__m512)best, (__m512)v);
  at = (vi)_mm512_mask_blend_epi32(take, (__m512i)at, (__m512i)tap);
}
inline vf where_equal(vi a, vi b, vf v) { return (vf)_mm512_maskz_mov_ps(any_equal(a, b), (__m512)v); }
#else
inline void see(vf v, vi tap, vf& best, vi& at) {
  const vi take = (v > best) | (v != v);
  best = take ? v : best;
  at = take ? tap : at;
}
inline vf where_equal(vi a, vi b, vf v) { return as_float(as_int(v) & (a == b)); }
#endif

// Windows of two by two, by far the most frequent ones, without loops.
template <typename T> void max_of_four(const PoolShape& s, const T* x, T* y, uint8_t* index, int threads) {
  const int64_t taps[4] = {0, s.batch, s.width.in * s.batch, (s.width.in + 1) * s.batch};
  parallel_for(s.channels, threads, [&](int64_t channel) {
    int64_t to = channel * s.height.out * s.width.out * s.batch;
    for (int64_t i = 0; i < s.height.out; i++)
      for (int64_t j = 0; j < s.width.out; j++, to += s.batch) {
        const T* p = x + ((channel * s.height.in + 2 * i) * s.width.in + 2 * j) * s.batch;
        each_vector(s.batch, [&](auto c) {
          for (int k = 0; k < decltype(c)::K; k++) {
            vf best = c.get(p, k);
            vi at = {};
            for (int tap = 1; tap < 4; tap++) see(c.get(p + taps[tap], k), splat(int32_t(tap)), best, at);
            c.put(y + to, k, best), c.put(index + to, k, at);
          }
        });
      }
  });
}

// An index counts the taps of the whole window, row by row.
template <typename T, typename Index>
void max_forward(const PoolShape& s, const T* x, T* y, Index* index, int threads) {
  for_outputs(s, threads, [&](int64_t i, int64_t j, Range down, Range across, int64_t from, int64_t to) {
    const int64_t top = i * s.height.stride - s.height.padding, left = j * s.width.stride - s.width.padding,
                  kernel = s.width.kernel;
    each_vector(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf best[K];
      vi at[K];
      for (int k = 0; k < K; k++) {
        best[k] = splat(-__builtin_inff());
        at[k] = splat(int32_t((down.lo - top) * kernel + across.lo - left));
      }
      for (int64_t h = down.lo; h < down.hi; h++)
        for (int64_t w = across.lo; w < across.hi; w++) {
          const T* p = x + from + (h * s.width.in + w) * s.batch;
          const vi tap = splat(int32_t((h - top) * kernel + w - left));
          for (int k = 0; k < K; k++) see(c.get(p, k), tap, best[k], at[k]);
        }
      for (int k = 0; k < K; k++) c.put(y + to, k, best[k]), c.put(index + to, k, at[k]);
    });
  });
}

template <bool TWO, typename T, typename Index>
void max_backward_apart(const PoolShape& s, const T* dy, const Index* index, T* dx, int threads) {
  const auto write = [&](int64_t i, int64_t j, Range down, Range across, int64_t from, T* plane) {
    if (TWO) down.hi = down.lo + 2, across.hi = across.lo + 2;
    const int64_t top = TWO ? down.lo : i * s.height.stride - s.height.padding,
                  left = TWO ? across.lo : j * s.width.stride - s.width.padding, kernel = TWO ? 2 : s.width.kernel;
    each_vector(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf d[K];
      vi at[K];
      for (int k = 0; k < K; k++) d[k] = vf{} + c.get(dy + from, k), at[k] = c.get(index + from, k);  // a sum: no -0
      for (int64_t h = down.lo; h < down.hi; h++)
        for (int64_t w = across.lo; w < across.hi; w++) {
          const vi tap = splat(int32_t((h - top) * kernel + w - left));
          T* to = plane + (h * s.width.in + w) * s.batch;
          for (int k = 0; k < K; k++) c.put(to, k, where_equal(at[k], tap, d[k]));
        }
    });
  };
  for_windows_apart(s, dx, threads, write);
}

template <typename T, typename Index>
void max_backward(const PoolShape& s, const T* dy, const Index* index, T* dx, int threads) {
  if (two(s.height) && two(s.width)) return max_backward_apart<true>(s, dy, index, dx, threads);
  if (apart(s.height) && apart(s.width)) return max_backward_apart<false>(s, dy, index, dx, threads);
  for_inputs(s, threads, [&](int64_t h, int64_t w, Range down, Range across, int64_t from, int64_t to) {
    each_vector(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf sum[K];
      for (int k = 0; k < K; k++) sum[k] = vf{};
      for (int64_t i = down.lo; i < down.hi; i++)
        for (int64_t j = across.lo; j < across.hi; j++) {
          const int64_t row = h - i * s.height.stride + s.height.padding,
                        column = w - j * s.width.stride + s.width.padding;
          const vi tap = splat(int32_t(row * s.width.kernel + column));
          const int64_t at = from + (i * s.width.out + j) * s.batch;
          for (int k = 0; k < K; k++) sum[k] += where_equal(c.get(index + at, k), tap, c.get(dy + at, k));
        }
      for (int k = 0; k < K; k++) c.put(dx + to, k, sum[k]);
    });
  });
}

// Padding counts; an adaptive window has none.
inline float area(const PoolShape& s, Range down, Range across) {
  return s.height.kernel ? float(s.height.kernel * s.width.kernel)
                         : float((down.hi - down.lo) * (across.hi - across.lo));
}

template <typename T>
void forward(const PoolShape& s, const T* x, T* y, uint8_t* index, int32_t* wide_index, int threads) {
  if (!index)
    max_forward(s, x, y, wide_index, threads);
  else if (two(s.height) && two(s.width))
    max_of_four(s, x, y, index, threads);
  else
    max_forward(s, x, y, index, threads);
}

template <typename T>
void backward(const PoolShape& s, const T* dy, const uint8_t* index, const int32_t* wide_index, T* dx, int threads) {
  index ? max_backward(s, dy, index, dx, threads) : max_backward(s, dy, wide_index, dx, threads);
}

template <typename T> void average(const PoolShape& s, const T* x, T* y, int threads) {
  for_outputs(s, threads, [&](int64_t, int64_t, Range down, Range across, int64_t from, int64_t to) {
    each_vector(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf sum[K];
      for (int k = 0; k < K; k++) sum[k] = vf{};
      for (int64_t h = down.lo; h < down.hi; h++)
        for (int64_t w = across.lo; w < across.hi; w++)
          for (int k = 0; k < K; k++) sum[k] += c.get(x + from + (h * s.width.in + w) * s.batch, k);
      const vf count = splat(area(s, down, across));
      for (int k = 0; k < K; k++) c.put(y + to, k, sum[k] / count);
    });
  });
}

template <typename T> void average_backward(const PoolShape& s, const T* dy, T* dx, int threads) {
  if (apart(s.height) && apart(s.width)) {
    const auto write = [&](int64_t, int64_t, Range down, Range across, int64_t from, T* plane) {
      const vf share = splat(1 / area(s, down, across));
      each_vector(s.batch, [&](auto c) {
        constexpr int K = decltype(c)::K;
        vf d[K];
        for (int k = 0; k < K; k++) d[k] = vf{} + share * c.get(dy + from, k);  // a sum: no -0
        for (int64_t h = down.lo; h < down.hi; h++)
          for (int64_t w = across.lo; w < across.hi; w++)
            for (int k = 0; k < K; k++) c.put(plane + (h * s.width.in + w) * s.batch, k, d[k]);
      });
    };
    return for_windows_apart(s, dx, threads, write);
  }
  const Ranges rows(s.height, inputs, s.height.out), columns(s.width, inputs, s.width.out);
  for_inputs(s, threads, [&](int64_t, int64_t, Range down, Range across, int64_t from, int64_t to) {
    each_vector(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf sum[K];
      for (int k = 0; k < K; k++) sum[k] = vf{};
      for (int64_t i = down.lo; i < down.hi; i++)
        for (int64_t j = across.lo; j < across.hi; j++) {
          const vf share = splat(1 / area(s, rows[i], columns[j]));
          for (int k = 0; k < K; k++) sum[k] += share * c.get(dy + from + (i * s.width.out + j) * s.batch, k);
        }
      for (int k = 0; k < K; k++) c.put(dx + to, k, sum[k]);
    });
  });
}

}  // namespace

void max_pool(PoolShape s, const float* x, float* y, uint8_t* index, int32_t* wide_index, int threads) {
  forward(s, x, y, index, wide_index, threads);
}

void max_pool_bf16(PoolShape s, const bf16* x, bf16* y, uint8_t* index, int32_t* wide_index, int threads) {
  forward(s, x, y, index, wide_index, threads);
}

void max_pool_backward(PoolShape s, const float* dy, const uint8_t* index, const int32_t* wide_index, float* dx,
                       int threads) {
  backward(s, dy, index, wide_index, dx, threads);
}

void max_pool_backward_bf16(PoolShape s, const bf16* dy, const uint8_t* index, const int32_t* wide_index, bf16* dx,
                            int threads) {
  backward(s, dy, index, wide_index, dx, threads);
}

void average_pool(PoolShape s, const float* x, float* y, int threads) { average(s, x, y, threads); }

void average_pool_bf16(PoolShape s, const bf16* x, bf16* y, int threads) { average(s, x, y, threads); }

void average_pool_backward(PoolShape s, const float* dy, float* dx, int threads) {
  average_backward(s, dy, dx, threads);
}

void average_pool_backward_bf16(PoolShape s, const bf16* dy, bf16* dx, int threads) {
  average_backward(s, dy, dx, threads);
}

}  // namespace SPARSE_ISA
