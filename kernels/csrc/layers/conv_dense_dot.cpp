// Convolution with a full weight on bfloat16 tensors by vdpbf16ps: conv_dense.cpp with the instruction in place of a
// multiply-add, twice as many products in each.
//
// Forward and input gradient take planes whose entries are pairs of channels (2 c, 2 c + 1) of one position and image,
// weights likewise, so that nothing is turned over in the loop: a pair is what a float is in conv_dense.cpp. The weight
// gradient takes the planes of all bfloat16 kernels, for neighbours in them are two images of one position.
#include "layers/conv_pairs.h"

namespace SPARSE_ISA {
namespace {

constexpr int THREE = 3, PART = 4, TAPS = 4;
constexpr int GROUPS = SPARSE_LANES == 16 ? 2 : 1;  // of three rows
constexpr int ROWS = GROUPS * THREE;

static inline vp as_pairs(vi v) { return reinterpret_cast<vp>(v); }

// N vectors of G groups of three rows, over n pairs of taps.
template <typename To> struct Step {
  const int32_t* x;  // pairs
  const uint32_t* offsets;
  int64_t n;
  const int32_t* weights;  // [G][taps][3], pairs
  int64_t group_size;
  int64_t rows;       // that exist
  const float* bias;  // start: these, or (null) sums
  const float* sums;
  int64_t sums_size;  // from row to row
  To* to;
  int64_t to_size;
  const int64_t* at;  // where the vectors go
};

template <int G, int N, typename To> void accumulate(const Step<To>& s) {
  vf sum[G * THREE][N];
  SPARSE_UNROLL
  for (int k = 0; k < G * THREE; k++) SPARSE_UNROLL
  for (int r = 0; r < N; r++)
    sum[k][r] = k >= s.rows ? vf{} : s.bias ? splat(s.bias[k]) : load(s.sums + k * s.sums_size + r * W);
  const int32_t* w = s.weights;
  for (int64_t t = 0; t < s.n; t++, w += THREE) {
    const int32_t* p = reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(s.x) + s.offsets[t]);
    vp v[N];
    SPARSE_UNROLL
    for (int r = 0; r < N; r++) v[r] = as_pairs(load(p + r * W));
    SPARSE_UNROLL
    for (int k = 0; k < G * THREE; k++) {
      const vp weight = as_pairs(splat(w[k / THREE * s.group_size + k % THREE]));
      SPARSE_UNROLL
      for (int r = 0; r < N; r++) sum[k][r] = dot(sum[k][r], weight, v[r]);
    }
  }
  SPARSE_UNROLL
  for (int k = 0; k < G * THREE; k++)
    if (k < s.rows) {
      SPARSE_UNROLL
      for (int r = 0; r < N; r++) store(s.to + k * s.to_size + s.at[r], sum[k][r]);
    }
}

template <int G, typename To>
constexpr void (*KERNELS[PART])(const Step<To>&) = {accumulate<G, 1, To>, accumulate<G, 2, To>, accumulate<G, 3, To>,
                                                    accumulate<G, 4, To>};

template <typename To> void run_step(const Step<To>& s, int vectors) {
  (s.rows > THREE ? KERNELS<GROUPS, To> : KERNELS<1, To>)[vectors - 1](s);
}

// The outputs of a tile, by way of sums [rows][TILE] where the taps are in several blocks or the tile is not plain.
void apply_tile(const Tiles& tiles, const ConvDense& w, const Tiles::Tile& tile, const int32_t* x,
                const int32_t* weights, const float* bias, bf16* y, float* sums) {
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
        const int32_t *from = weights + o * w.taps + t * THREE, *under = x + tile.input + at * W;
        const float *start = t ? nullptr : bias + o, *before = sums + o * TILE + at * W;
        if (direct)
          run_step<bf16>({under, w.offsets + t, n, from, THREE * w.taps, rows, start, before, TILE,
                          y + o * tiles.y.plane_size + tile.output, tiles.y.plane_size, places + at},
                         vectors);
        else
          run_step<float>({under, w.offsets + t, n, from, THREE * w.taps, rows, start, before, TILE, sums + o * TILE,
                           TILE, together + at},
                          vectors);
      }
  }
  if (!plain)
    for (int64_t o = 0; o < w.rows; o++) give(tiles, tile, sums + o * TILE, y + o * tiles.y.plane_size);
}

// A vector of n entries that are there, 0 beyond them.
static inline vp load_part(const bf16* p, int64_t n) {
  if (n >= P) return load_pairs(p);
  bf16 entries[P] = {};
  memcpy(entries, p, n * sizeof(bf16));
  return load_pairs(entries);
}

// to[k][t] += dy of channel k times the input at offset t, over `run` entries, for t < TAPS.
template <int K>
void correlate(const bf16* x, const uint32_t* offsets, const bf16* const (&dy)[ROWS], int64_t run,
               float* const (&to)[ROWS]) {
  const bf16* p[TAPS];
  for (int t = 0; t < TAPS; t++) p[t] = moved(x, offsets[t]);
  vf sum[K][TAPS] = {};
  const auto add = [&](int64_t i, auto get) SPARSE_INLINE_LAMBDA {
    vp v[TAPS];
    SPARSE_UNROLL
    for (int t = 0; t < TAPS; t++) v[t] = get(p[t] + i);
    SPARSE_UNROLL
    for (int k = 0; k < K; k++) {
      const vp d = get(dy[k] + i);
      SPARSE_UNROLL
      for (int t = 0; t < TAPS; t++) sum[k][t] = dot(sum[k][t], d, v[t]);
    }
  };
  int64_t i = 0;
  for (; i + P <= run; i += P) add(i, [](const bf16* from) { return load_pairs(from); });
  if (i < run) add(i, [n = run - i](const bf16* from) { return load_part(from, n); });
  SPARSE_UNROLL
  for (int k = 0; k < K; k++) add_sums(to[k], sum[k]);
}

// gradients of rows lo to hi += those of `run` outputs. dy: theirs, `row_size` entries from channel to channel.
void gradient_run(const ConvDense& w, int64_t run, int64_t lo, int64_t hi, const bf16* x, const bf16* dy,
                  int64_t row_size, float* gradients) {
  for (int64_t first = 0; first < w.taps; first += w.block) {
    const int64_t end = smaller(first + w.block, w.taps);
    for (int64_t o = lo; o < hi; o += ROWS) {
      const auto add = GROUPS > 1 && hi - o > THREE ? correlate<ROWS> : correlate<THREE>;
      const bf16* d[ROWS];
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

}  // namespace

// planes.channels counts pairs. out: as conv_planes has it, of pairs of channels; a last one without a second has 0.
void conv_planes_pairs(ConvPlanes p, int64_t channels, const bf16* x, bf16* out, int threads) {
  parallel_for(p.chunks * p.channels, threads, [&](int64_t i) {
    const int64_t n0 = i / p.channels * p.lanes, n = smaller(p.lanes, p.batch - n0), channel = i % p.channels * 2;
    const int64_t size = p.height * p.width * p.batch, second = channel + 1 < channels ? size : 0;
    const bf16* from = x + channel * size + n0;
    int32_t* to = reinterpret_cast<int32_t*>(out) + i * p.phases * p.phases * p.plane_size;
    memset(to, 0, p.phases * p.phases * p.plane_size * sizeof(int32_t));
    for (int64_t a = 0; a < p.phases; a++)
      for (int64_t b = 0; b < p.phases; b++, to += p.plane_size)
        for (int64_t r = p.top; r < p.rows; r++) {
          const int64_t h = (r - p.top) * p.stride + a, columns = (p.width - b + p.stride - 1) / p.stride;
          if (h >= p.height) break;
          int32_t* row = to + (r * p.columns + p.left) * p.lanes;
          const bf16* line = from + (h * p.width + b) * p.batch;
          for (int64_t c = 0; c < columns && c + p.left < p.columns; c++, row += p.lanes, line += p.stride * p.batch)
            for (int64_t k = 0; k < n; k += W) {
              const vi u = as_int(load_until(line + k, line + n)),
                       v = second ? as_int(load_until(line + second + k, line + second + n)) : vi{};
              store_until(row + k, (u >> 16 & 0xffff) | v, row + n);
            }
        }
  });
}

// weights: [rows in threes][pairs of taps][3] pairs of bfloat16. Needs the instruction.
void conv_dense_dot(ConvPlanes planes, ConvDense w, ConvOutput out, const bf16* x, const bf16* weights,
                    const float* bias, bf16* y, int threads) {
  const Tiles tiles(planes, out, TILE, 1);
  const int32_t *pairs = reinterpret_cast<const int32_t*>(x), *all = reinterpret_cast<const int32_t*>(weights);
  share_tiles(tiles.count, threads, [&](int64_t first, int64_t last) {
    const Scratch<float> memory((w.rows + 1) * TILE, "the sums of a tile of a convolution");
    const Scratch<float> none(bias ? 0 : w.rows, "the biases of a convolution");
    if (!bias) memset(none, 0, w.rows * sizeof(float));
    for (int64_t i = first; i < last; i++) apply_tile(tiles, w, tiles[i], pairs, all, bias ? bias : none, y, memory);
  });
}

// As conv_dense_gradient. Needs the instruction.
void conv_dense_gradient_dot(ConvPlanes planes, ConvDense w, ConvOutput out, int64_t most, const bf16* x,
                             const bf16* dy, float* gradients, int threads) {
  memset(gradients, 0, w.rows * w.taps * sizeof(float));
  const Tiles tiles(planes, out, most * TILE, 1);
  const int64_t groups = (w.rows + ROWS - 1) / ROWS, shares = threads > 1 ? smaller(threads, groups) : 1;
  parallel_for(shares, threads, [&](int64_t share) {
    const int64_t lo = groups * share / shares * ROWS, hi = smaller(groups * (share + 1) / shares * ROWS, w.rows);
    const Scratch<bf16> memory(w.rows * most * TILE, "a run of a convolution's output gradients");
    bf16* vectors = memory;
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

}  // namespace SPARSE_ISA
