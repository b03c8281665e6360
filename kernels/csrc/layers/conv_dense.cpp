// Convolution with a full weight, in the same tiles and planes as the sparse one: for layers that masks leave dense (or
// nearly so), without a change of layout. Some output channels share the loads of an input, and four vectors of input
// those of a weight: 3 x 4, or 6 x 4 where there are 32 registers, so that the loads no longer bind. The weight
// gradient takes as many channels and 4 taps over a run of outputs, so that the sums over lanes cost little.
#include "layers/conv_tiles.h"

namespace SPARSE_ISA {
namespace {

constexpr int THREE = 3, PART = 4, TAPS = 4;
constexpr int GROUPS = SPARSE_LANES == 16 ? 2 : 1;  // of three rows
constexpr int ROWS = GROUPS * THREE;

// P vectors of G groups of three rows, over n taps.
template <typename T, typename To> struct Step {
  const T* x;
  const uint32_t* offsets;
  int64_t n;
  const float* weights;  // [G][taps][3]
  int64_t group_size;    // floats from group to group of the weights
  int64_t rows;          // that exist
  const float* bias;     // start: these, or (null) sums
  const float* sums;
  int64_t sums_size;  // from row to row
  To* to;
  int64_t to_size;
  const int64_t* at;  // where the vectors go
};

template <int G, int P, typename T, typename To> void accumulate(const Step<T, To>& s) {
  vf sum[G * THREE][P];
  SPARSE_UNROLL
  for (int k = 0; k < G * THREE; k++) SPARSE_UNROLL
  for (int r = 0; r < P; r++)
    sum[k][r] = k >= s.rows ? vf{} : s.bias ? splat(s.bias[k]) : load(s.sums + k * s.sums_size + r * W);
  const float* w = s.weights;
  for (int64_t t = 0; t < s.n; t++, w += THREE) {
    const T* p = reinterpret_cast<const T*>(reinterpret_cast<const char*>(s.x) + s.offsets[t]);
    vf weight[G * THREE];
    SPARSE_UNROLL
    for (int k = 0; k < G * THREE; k++) weight[k] = splat(w[k / THREE * s.group_size + k % THREE]);
    SPARSE_UNROLL
    for (int r = 0; r < P; r++) {
      const vf v = load(p + r * W);
      SPARSE_UNROLL
      for (int k = 0; k < G * THREE; k++) sum[k][r] += weight[k] * v;
    }
  }
  SPARSE_UNROLL
  for (int k = 0; k < G * THREE; k++)
    if (k < s.rows) {
      SPARSE_UNROLL
      for (int r = 0; r < P; r++) store(s.to + k * s.to_size + s.at[r], sum[k][r]);
    }
}

template <int G, typename T, typename To>
constexpr void (*KERNELS[PART])(const Step<T, To>&) = {accumulate<G, 1, T, To>, accumulate<G, 2, T, To>,
                                                       accumulate<G, 3, T, To>, accumulate<G, 4, T, To>};

template <typename T, typename To> void run_step(const Step<T, To>& s, int vectors) {
  (s.rows > THREE ? KERNELS<GROUPS, T, To> : KERNELS<1, T, To>)[vectors - 1](s);
}

// The outputs of a tile, by way of sums [rows][TILE] where the taps are in several blocks or the tile is not plain.
template <typename T>
void apply_tile(const Tiles& tiles, const ConvDense& w, const Tiles::Tile& tile, const T* x, const float* weights,
                const float* bias, T* y, float* sums) {
  const int parts = (tile.vectors + PART - 1) / PART;
  const bool plain = tiles.plain(tile);
  int64_t together[R], places[R];
  for (int r = 0; r < R; r++) together[r] = r * W;
  if (plain) tiles.places(tile, places);
  for (int64_t t = 0; t == 0 || t < w.taps; t += w.block) {  // without taps there are still biases
    const bool direct = plain && t + w.block >= w.taps;
    for (int64_t o = 0; o < w.rows; o += ROWS)
      for (int i = 0; i < parts; i++) {
        const int at = i * tile.vectors / parts, vectors = (i + 1) * tile.vectors / parts - at;
        const int64_t n = smaller(w.block, w.taps - t), rows = w.rows - o;
        const float *from = weights + o * w.taps + t * THREE, *start = t ? nullptr : bias + o;
        if (direct)
          run_step<T, T>(
              {x + tile.input + at * W, w.offsets + t, n, from, THREE * w.taps, rows, start, sums + o * TILE + at * W,
               TILE, y + o * tiles.y.plane_size + tile.output, tiles.y.plane_size, places + at},
              vectors);
        else
          run_step<T, float>({x + tile.input + at * W, w.offsets + t, n, from, THREE * w.taps, rows, start,
                              sums + o * TILE + at * W, TILE, sums + o * TILE, TILE, together + at},
                             vectors);
      }
  }
  if (!plain)
    for (int64_t o = 0; o < w.rows; o++) give(tiles, tile, sums + o * TILE, y + o * tiles.y.plane_size);
}

// to[k][t] += dy of channel k times the input at offset t, over `run` floats, for t < TAPS.
template <int K, typename T>
void correlate(const T* x, const uint32_t* offsets, const T* const (&dy)[ROWS], int64_t run, float* const (&to)[ROWS]) {
  const T* p[TAPS];
  for (int t = 0; t < TAPS; t++) p[t] = reinterpret_cast<const T*>(reinterpret_cast<const char*>(x) + offsets[t]);
  vf sum[K][TAPS] = {};
  for (int64_t i = 0; i < run; i += W) {
    vf d[K];
    SPARSE_UNROLL
    for (int k = 0; k < K; k++) d[k] = load(dy[k] + i);
    SPARSE_UNROLL
    for (int t = 0; t < TAPS; t++) {
      const vf v = load(p[t] + i);
      SPARSE_UNROLL
      for (int k = 0; k < K; k++) sum[k][t] += d[k] * v;
    }
  }
  SPARSE_UNROLL
  for (int k = 0; k < K; k++) add_sums(to[k], sum[k]);
}

// gradients of rows lo to hi += those of `run` outputs. dy: theirs, `row_size` floats from channel to channel.
template <typename T>
void gradient_run(const ConvDense& w, int64_t run, int64_t lo, int64_t hi, const T* x, const T* dy, int64_t row_size,
                  float* gradients) {
  for (int64_t first = 0; first < w.taps; first += w.block) {
    const int64_t end = smaller(first + w.block, w.taps);
    for (int64_t o = lo; o < hi; o += ROWS) {
      const auto add = GROUPS > 1 && hi - o > THREE ? correlate<ROWS, T> : correlate<THREE, T>;
      const T* d[ROWS];
      for (int64_t k = 0; k < ROWS; k++) d[k] = dy + smaller(o + k, hi - 1) * row_size;
      float spare[TAPS] = {};  // takes what belongs to no row, after the last one
      float* to[ROWS];
      int64_t t = first;
      for (; t + TAPS <= end; t += TAPS) {
        for (int64_t k = 0; k < ROWS; k++) to[k] = o + k < hi ? gradients + (o + k) * w.taps + t : spare;
        add(x, w.offsets + t, d, run, to);
      }
      if (t < end) {  // fewer than four are left: the last offset again in place of those missing
        uint32_t offsets[TAPS];
        float four[ROWS][TAPS] = {};
        for (int k = 0; k < TAPS; k++) offsets[k] = w.offsets[smaller(t + k, end - 1)];
        for (int k = 0; k < ROWS; k++) to[k] = four[k];
        add(x, offsets, d, run, to);
        for (int64_t k = 0; k < ROWS && o + k < hi; k++)
          for (int64_t j = t; j < end; j++) gradients[(o + k) * w.taps + j] += four[k][j - t];
      }
    }
  }
}

template <typename T>
void apply(ConvPlanes planes, ConvDense w, ConvOutput out, const T* x, const float* weights, const float* bias, T* y,
           int threads) {
  const Tiles tiles(planes, out, TILE, 1);
  share_tiles(tiles.count, threads, [&](int64_t first, int64_t last) {
    const Scratch<float> memory((w.rows + 1) * TILE, "the sums of a tile of a convolution");
    const Scratch<float> none(bias ? 0 : w.rows, "the biases of a convolution");
    if (!bias) memset(none, 0, w.rows * sizeof(float));
    for (int64_t i = first; i < last; i++) apply_tile(tiles, w, tiles[i], x, weights, bias ? bias : none, y, memory);
  });
}

// gradients: [rows][taps]. most: tiles of a row that are taken together, if it has them.
template <typename T>
void gradient(ConvPlanes planes, ConvDense w, ConvOutput out, int64_t most, const T* x, const T* dy, float* gradients,
              int threads) {
  memset(gradients, 0, w.rows * w.taps * sizeof(float));
  const Tiles tiles(planes, out, most * TILE, 1);
  const int64_t groups = (w.rows + ROWS - 1) / ROWS, shares = threads > 1 ? smaller(threads, groups) : 1;
  parallel_for(shares, threads, [&](int64_t share) {
    const int64_t lo = groups * share / shares * ROWS, hi = smaller(groups * (share + 1) / shares * ROWS, w.rows);
    const Scratch<T> memory(w.rows * most * TILE, "a run of a convolution's output gradients");
    T* vectors = memory;
    for (int64_t i = 0; i < tiles.count; i++) {
      const Tiles::Tile tile = tiles[i];
      const int64_t run = tile.vectors * W;
      if (tiles.together(tile)) {
        gradient_run(w, run, lo, hi, x + tile.input, dy + tile.output, tiles.y.plane_size, gradients);
      } else {
        for (int64_t o = lo; o < hi; o++) take(tiles, tile, dy + o * tiles.y.plane_size, vectors + o * most * TILE);
        gradient_run(w, run, lo, hi, x + tile.input, vectors, most * TILE, gradients);
      }
    }
  });
}

}  // namespace

void conv_dense_apply(ConvPlanes planes, ConvDense w, ConvOutput out, const float* x, const float* weights,
                      const float* bias, float* y, int threads) {
  apply(planes, w, out, x, weights, bias, y, threads);
}

void conv_dense_apply_bf16(ConvPlanes planes, ConvDense w, ConvOutput out, const bf16* x, const float* weights,
                           const float* bias, bf16* y, int threads) {
  apply(planes, w, out, x, weights, bias, y, threads);
}

void conv_dense_gradient(ConvPlanes planes, ConvDense w, ConvOutput out, int64_t most, const float* x, const float* dy,
                         float* gradients, int threads) {
  gradient(planes, w, out, most, x, dy, gradients, threads);
}

void conv_dense_gradient_bf16(ConvPlanes planes, ConvDense w, ConvOutput out, int64_t most, const bf16* x,
                              const bf16* dy, float* gradients, int threads) {
  gradient(planes, w, out, most, x, dy, gradients, threads);
}

}  // namespace SPARSE_ISA
