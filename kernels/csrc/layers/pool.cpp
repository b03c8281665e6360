// Max and average pooling on batch-last tensors [channel][height][width][batch], forward and backward.
// A window is a few rows of the batch, so all work is on contiguous runs. Backward writes every input once and in one
// order: where windows lie apart, every window its inputs; else every input asks the windows that hold it.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "layers/columns.h"

namespace SPARSE_ISA {
namespace {

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Windows of which none holds an input of another: rows x columns inputs, whole, `down` and `across` apart.
struct Apart {
  int64_t rows, columns, down, across;
  bool all;  // every input is in one

  static bool holds(const PoolShape& s) { return lies_apart(s.height) && lies_apart(s.width); }
  explicit Apart(const PoolShape& s)
      : rows(size(s.height)), columns(size(s.width)), down(step(s.height)), across(step(s.width)) {
    all =
        rows == down && columns == across && rows * s.height.out == s.height.in && columns * s.width.out == s.width.in;
  }

 private:
  static bool lies_apart(const PoolAxis& a) {
    return a.kernel ? a.padding == 0 && a.stride >= a.kernel : a.in % a.out == 0;
  }
  static int64_t size(const PoolAxis& a) { return a.kernel ? a.kernel : a.in / a.out; }
  static int64_t step(const PoolAxis& a) { return a.kernel ? a.stride : a.in / a.out; }
};

// Channel by channel, for every window: use(where its outputs are, where its first inputs are in dx). Inputs in no
// window are 0.
template <typename Use> void for_windows(const PoolShape& s, const Apart& windows, float* dx, int threads, Use use) {
  parallel_for(s.channels, threads, [&](int64_t channel) {
    const int64_t size = s.height.in * s.width.in * s.batch;
    float* const image = dx + channel * size;
    if (!windows.all) memset(image, 0, size * sizeof(float));
    int64_t from = channel * s.height.out * s.width.out * s.batch;
    for (int64_t i = 0; i < s.height.out; i++)
      for (int64_t j = 0; j < s.width.out; j++, from += s.batch)
        use(from, image + (i * windows.down * s.width.in + j * windows.across) * s.batch);
  });
}

// Windows of 2 x 2 without padding, by far the most frequent ones, without loops; the rules are those below.
template <typename Index> void max_of_four(const PoolShape& s, const float* x, float* y, Index* index, int threads) {
  const int64_t taps[4] = {0, s.batch, s.width.in * s.batch, (s.width.in + 1) * s.batch};
  parallel_for(s.channels, threads, [&](int64_t channel) {
    int64_t to = channel * s.height.out * s.width.out * s.batch;
    for (int64_t i = 0; i < s.height.out; i++)
      for (int64_t j = 0; j < s.width.out; j++, to += s.batch) {
        const float* p =
            x + ((channel * s.height.in + i * s.height.stride) * s.width.in + j * s.width.stride) * s.batch;
        each_block(s.batch, [&](auto c) {
          for (int k = 0; k < decltype(c)::K; k++) {
            vf best = c.get(p, k);
            vi at = {};
            for (int tap = 1; tap < 4; tap++) {
              const vf v = c.get(p + taps[tap], k);
              const vi take = (v > best) | (v != v);
              best = take ? v : best;
              at = take ? splat(int32_t(tap)) : at;
            }
            c.put(y + to, k, best), c.put(index + to, k, at);
          }
        });
      }
  });
}

// The first maximum, as torch; a NaN wins. An index counts the taps of the whole window, row by row.
template <typename Index> void max_forward(const PoolShape& s, const float* x, float* y, Index* index, int threads) {
  const auto two = [](const PoolAxis& a) { return a.kernel == 2 && a.padding == 0; };
  if (two(s.height) && two(s.width)) return max_of_four(s, x, y, index, threads);
  for_outputs(s, threads, [&](int64_t i, int64_t j, Range down, Range across, int64_t from, int64_t to) {
    const int64_t top = i * s.height.stride - s.height.padding, left = j * s.width.stride - s.width.padding;
    each_block(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf best[K];
      vi at[K];
      for (int k = 0; k < K; k++) {
        best[k] = splat(-__builtin_inff());
        at[k] = splat(int32_t((down.lo - top) * s.width.kernel + across.lo - left));
      }
      for (int64_t h = down.lo; h < down.hi; h++)
        for (int64_t w = across.lo; w < across.hi; w++) {
          const float* p = x + from + (h * s.width.in + w) * s.batch;
          const vi tap = splat(int32_t((h - top) * s.width.kernel + w - left));
          for (int k = 0; k < K; k++) {
            const vf v = c.get(p, k);
            const vi take = (v > best[k]) | (v != v);
            best[k] = take ? v : best[k];
            at[k] = take ? tap : at[k];
          }
        }
      for (int k = 0; k < K; k++) c.put(y + to, k, best[k]), c.put(index + to, k, at[k]);
    });
  });
}

template <typename Index>
void max_backward(const PoolShape& s, const float* dy, const Index* index, float* dx, int threads) {
  if (Apart::holds(s)) {
    const Apart windows(s);
    for_windows(s, windows, dx, threads, [&](int64_t from, float* to) {
      each_block(s.batch, [&](auto c) {
        constexpr int K = decltype(c)::K;
        vf d[K];
        vi at[K];
        for (int k = 0; k < K; k++) d[k] = c.get(dy + from, k), at[k] = c.get(index + from, k);
        int32_t tap = 0;
        for (int64_t h = 0; h < windows.rows; h++)
          for (int64_t w = 0; w < windows.columns; w++, tap++) {
            float* input = to + (h * s.width.in + w) * s.batch;
            for (int k = 0; k < K; k++) c.put(input, k, vf{} + as_float(as_int(d[k]) & (at[k] == splat(tap))));
          }
      });
    });
    return;
  }
  for_inputs(s, threads, [&](int64_t h, int64_t w, Range down, Range across, int64_t from, int64_t to) {
    each_block(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf sum[K];
      for (int k = 0; k < K; k++) sum[k] = vf{};
      for (int64_t i = down.lo; i < down.hi; i++)
        for (int64_t j = across.lo; j < across.hi; j++) {
          const int64_t row = h - i * s.height.stride + s.height.padding,
                        column = w - j * s.width.stride + s.width.padding;
          const vi tap = splat(int32_t(row * s.width.kernel + column));
          const int64_t at = from + (i * s.width.out + j) * s.batch;
          for (int k = 0; k < K; k++) sum[k] += as_float(as_int(c.get(dy + at, k)) & (c.get(index + at, k) == tap));
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

}  // namespace

void max_pool(PoolShape s, const float* x, float* y, uint8_t* index, int32_t* wide_index, int threads) {
  index ? max_forward(s, x, y, index, threads) : max_forward(s, x, y, wide_index, threads);
}

void max_pool_backward(PoolShape s, const float* dy, const uint8_t* index, const int32_t* wide_index, float* dx,
                       int threads) {
  index ? max_backward(s, dy, index, dx, threads) : max_backward(s, dy, wide_index, dx, threads);
}

void average_pool(PoolShape s, const float* x, float* y, int threads) {
  for_outputs(s, threads, [&](int64_t, int64_t, Range down, Range across, int64_t from, int64_t to) {
    each_block(s.batch, [&](auto c) {
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

void average_pool_backward(PoolShape s, const float* dy, float* dx, int threads) {
  if (Apart::holds(s)) {
    const Apart windows(s);
    const vf share = splat(1 / float(windows.rows * windows.columns));
    for_windows(s, windows, dx, threads, [&](int64_t from, float* to) {
      each_block(s.batch, [&](auto c) {
        constexpr int K = decltype(c)::K;
        vf d[K];
        for (int k = 0; k < K; k++) d[k] = vf{} + share * c.get(dy + from, k);
        for (int64_t h = 0; h < windows.rows; h++)
          for (int64_t w = 0; w < windows.columns; w++)
            for (int k = 0; k < K; k++) c.put(to + (h * s.width.in + w) * s.batch, k, d[k]);
      });
    });
    return;
  }
  for_inputs(s, threads, [&](int64_t, int64_t, Range down, Range across, int64_t from, int64_t to) {
    each_block(s.batch, [&](auto c) {
      constexpr int K = decltype(c)::K;
      vf sum[K];
      for (int k = 0; k < K; k++) sum[k] = vf{};
      for (int64_t i = down.lo; i < down.hi; i++)
        for (int64_t j = across.lo; j < across.hi; j++) {
          const vf share = splat(1 / area(s, inputs(s.height, i), inputs(s.width, j)));
          for (int k = 0; k < K; k++) sum[k] += share * c.get(dy + from + (i * s.width.out + j) * s.batch, k);
        }
      for (int k = 0; k < K; k++) c.put(dx + to, k, sum[k]);
    });
  });
}

}  // namespace SPARSE_ISA
