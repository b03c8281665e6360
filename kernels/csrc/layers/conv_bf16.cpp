// Sparse convolution on bfloat16 batch-last tensors: forward and input gradient. The tiles, planes and order of
// conv.cpp; sums are float.
//
// Two weights of a row go together, any two: their inputs are interleaved in registers, and one vdpbf16ps (`DOT`) adds
// both products. So masks need no structure, and a load brings 2 W inputs instead of W. Without the instruction the
// inputs become floats in registers.
#include "layers/conv_pairs.h"

namespace SPARSE_ISA {
namespace {

template <int N> struct Sums {
  vf low[N], high[N];
};

// One weight or two, times the vectors of their inputs.
template <bool DOT, int H, int V>
static SPARSE_INLINE void add_one(const bf16* a, int64_t row, bf16 weight, Sums<H * V>& s) {
  const vf w = splat(to_float(weight));
  SPARSE_UNROLL
  for (int r = 0; r < H * V; r++) {
    const vp u = held(load_pairs(a + r / V * row + r % V * P)), zero = {};
    s.low[r] += w * as_float(low(zero, u));
    s.high[r] += w * as_float(high(zero, u));
  }
}
template <bool DOT, int H, int V>
static SPARSE_INLINE void add_two(const bf16* x, int64_t row, const uint32_t* offsets, const bf16* weights,
                                  Sums<H * V>& s) {
  const bf16 *a = moved(x, offsets[0]), *b = moved(x, offsets[1]);
  if (!DOT) {
    add_one<DOT, H, V>(a, row, weights[0], s);
    add_one<DOT, H, V>(b, row, weights[1], s);
    return;
  }
  int32_t two;
  memcpy(&two, weights, 4);
  const vp w = reinterpret_cast<vp>(splat(two));
  SPARSE_UNROLL
  for (int r = 0; r < H * V; r++) {
    const vp u = held(load_pairs(a + r / V * row + r % V * P)), v = held(load_pairs(b + r / V * row + r % V * P));
    s.low[r] = dot(s.low[r], w, low(u, v));
    s.high[r] = dot(s.high[r], w, high(u, v));
  }
}

// s += n weights of one row, each times its shifted input. With few vectors, neighbouring pairs have sums of their own:
// it takes eight to hide the latency.
template <bool DOT, int H, int V>
static SPARSE_INLINE void accumulate(const bf16* x, int64_t row, const uint32_t* offsets, const bf16* weights, int n,
                                     Sums<H * V>& s) {
  constexpr int N = H * V, SETS = N >= 4 ? 1 : N >= 2 ? 2 : 4;
  Sums<N> more[SETS] = {};
  if (SETS > 1)
    for (; n >= 2 * SETS; n -= 2 * SETS, offsets += 2 * SETS, weights += 2 * SETS) SPARSE_UNROLL
  for (int k = 0; k < SETS; k++) add_two<DOT, H, V>(x, row, offsets + 2 * k, weights + 2 * k, more[k]);
  for (; n >= 2; n -= 2, offsets += 2, weights += 2) add_two<DOT, H, V>(x, row, offsets, weights, s);
  if (n > 0) add_one<DOT, H, V>(moved(x, offsets[0]), row, weights[0], s);
  if (SETS > 1) SPARSE_UNROLL
  for (int r = 0; r < N; r++) SPARSE_UNROLL
  for (int k = 0; k < SETS; k++) s.low[r] += more[k].low[r], s.high[r] += more[k].high[r];
}

// Fetches what a later visit has among the weights, as fetch_ahead of conv_weights.h.
static SPARSE_INLINE void fetch_ahead(const ConvWeights& w, const int32_t* at, const bf16* values, int64_t k) {
  constexpr int64_t VISITS = 6, LINE = 32;
  const int64_t next = smaller(k + VISITS, w.visits - 1);
  const bf16* first = values + at[next];
  const int32_t n = w.starts[next + 1] - w.starts[next];
  for (int32_t i = 0; i < n + LINE - 1; i += LINE) __builtin_prefetch(first + i);
}

template <bool DOT> struct Apply {
  // The outputs of a tile by way of sums [rows][vectors], in registers alone where a row has one visit.
  template <int H, int V>
  static void run(const Pass& p, const Tiles::Tile& tile, const bf16* x, const bf16* weights, const float* bias,
                  bf16* y, float* sums) {
    constexpr int N = H * V;
    const ConvWeights& w = p.w;
    const bool plain = p.tiles.plain(tile) && tile.n % P == 0, once = w.visits == w.rows;
    const int64_t size = p.tiles.row_size();
    int64_t at[PAIRS] = {};
    if (plain) pair_places(p.tiles, tile, V, at);
    const auto finish = [&](int64_t o, const Sums<N>& s) {
      bf16* to = y + o * p.tiles.y.plane_size;
      if (plain) {
        SPARSE_UNROLL
        for (int r = 0; r < N; r++) store_pairs(to + tile.output + at[r], both(s.low[r], s.high[r]));
      } else {
        bf16 vectors[N * P];
        for (int r = 0; r < N; r++) store_pairs(vectors + r * P, both(s.low[r], s.high[r]));
        give_pairs(p.tiles, tile, V, vectors, to);
      }
    };
    if (!once)
      for (int64_t o = 0; o < w.rows; o++) {
        const vf start = splat(bias ? bias[o] : 0.0f);
        for (int r = 0; r < 2 * N; r++) store(sums + (o * 2 * N + r) * W, start);
      }
    for (int64_t k = 0; k < w.visits; k++) {
      const int32_t first = w.starts[k], n = w.starts[k + 1] - first, row = w.order[k];
      fetch_ahead(w, p.at, weights, k);
      if (!n && !once) continue;
      float* kept = sums + row * 2 * N * W;
      Sums<N> s;
      SPARSE_UNROLL
      for (int r = 0; r < N; r++) {
        s.low[r] = once ? splat(bias ? bias[row] : 0.0f) : load(kept + 2 * r * W);
        s.high[r] = once ? s.low[r] : load(kept + (2 * r + 1) * W);
      }
      accumulate<DOT, H, V>(x + tile.input, size, w.offsets + first, weights + p.at[k], n, s);
      if (once) {
        finish(row, s);
      } else {
        SPARSE_UNROLL
        for (int r = 0; r < N; r++) store(kept + 2 * r * W, s.low[r]), store(kept + (2 * r + 1) * W, s.high[r]);
      }
    }
    for (int64_t o = 0; o < w.rows && !once; o++) {
      Sums<N> s;
      for (int r = 0; r < N; r++) {
        s.low[r] = load(sums + (o * 2 * N + 2 * r) * W);
        s.high[r] = load(sums + (o * 2 * N + 2 * r + 1) * W);
      }
      finish(o, s);
    }
  }
};

template <bool DOT>
void apply(const ConvPlanes& planes, const ConvWeights& w, const ConvOutput& out, const bf16* x, const bf16* weights,
           const float* bias, bf16* y, int threads) {
  constexpr decltype(&Apply<DOT>::template run<1, 1>) RUN[][PAIRS] = SPARSE_PAIR_KERNELS(Apply<DOT>::template run);
  const Tiles tiles(planes, out, planes.tile, planes.high);
  const Pass pass(tiles, w);
  share_tiles(tiles.count, threads, [&](int64_t first, int64_t last) {
    const Scratch<float> sums(w.visits == w.rows ? 0 : w.rows * TILE, "the sums of a tile of a convolution");
    for (int64_t i = first; i < last; i++) {
      const Tiles::Tile tile = tiles[i];
      RUN[tile.rows - 1][pair_vectors(tiles, tile) - 1](pass, tile, x, weights, bias, y, sums);
    }
  });
}

}  // namespace

bool bf16_dot() {
#if defined(SPARSE_DOT)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// dot: with the instruction, which has to be there.
void conv_apply_bf16(ConvPlanes planes, ConvWeights w, ConvOutput out, const bf16* x, const bf16* weights,
                     const float* bias, bf16* y, bool with_dot, int threads) {
  with_dot ? apply<true>(planes, w, out, x, weights, bias, y, threads)
           : apply<false>(planes, w, out, x, weights, bias, y, threads);
}

// out[i] = values[index[i]], 0 where the index is negative.
void conv_pick_bf16(const bf16* values, const int32_t* index, int64_t n, bf16* out, int threads) {
  constexpr int64_t CHUNK = 1 << 15;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t c) {
    for (int64_t i = c * CHUNK; i < n && i < (c + 1) * CHUNK; i++) out[i] = index[i] < 0 ? bf16{} : values[index[i]];
  });
}

// The same of floats, rounded; without an index, values[i]. Rounding what came one by one would wait for the stores.
void conv_gather_bf16(const float* values, const int32_t* index, int64_t n, bf16* out, int threads) {
  if (!index) return narrow(values, out, n, threads);
  constexpr int64_t CHUNK = 1 << 12;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t c) {
    float chosen[CHUNK];
    const int64_t first = c * CHUNK, count = smaller(CHUNK, n - first);
    for (int64_t i = 0; i < count; i++) chosen[i] = index[first + i] < 0 ? 0.0f : values[index[first + i]];
    narrow(chosen, out + first, count, 1);
  });
}

}  // namespace SPARSE_ISA
