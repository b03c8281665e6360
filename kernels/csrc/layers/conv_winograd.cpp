// 3x3 convolution of stride 1 with a full weight by Winograd's F(4x4, 3x3): a tile of 4x4 outputs costs 36
// multiplications a channel instead of 144.
//
//     y = A' [ (G w G') * (B' x B) ] A         x: 6x6 inputs, w: 3x3, y: 4x4 outputs; * is a sum over channels
//     dw = G' [ (A dy A') * (B' x B) ] G       * is a sum over tiles and images
//
// Batch-last tensors make the transforms plain vector arithmetic: a lane is an image. A *unit* is one tile of W images;
// the products are 36 small matrix products over a few units, whose operands stay in L2.
#include "layers/conv_tiles.h"

namespace SPARSE_ISA {
namespace {

constexpr int POINTS = 36, UNITS = 4, PART = 12;
// Units of a weight gradient's products, and blocks that share a pass over many weights: with 16 lanes a unit is twice
// as large, and what several of them need is then beyond L2.
constexpr int GRADIENT_UNITS = SPARSE_LANES == 16 ? 16 : 32, MANY = SPARSE_LANES == 16 ? 1 : 4;
constexpr int ROWS = SPARSE_LANES == 16 ? 6 : 3;  // whose sums stay in registers, with UNITS columns or four channels
constexpr int64_t CHUNK = 16;  // rows whose weights, or channels whose inputs, stay in L1 while the others pass by
constexpr int64_t L2 = 320 << 10;

// The four one-dimensional maps, in place on every s-th element.
template <int S> static inline void inputs(vf* d) {  // B': 6 -> 6
  const vf a = d[4 * S] - 4.0f * d[2 * S], b = d[3 * S] - 4.0f * d[S];
  const vf c = d[4 * S] - d[2 * S], e = 2.0f * (d[3 * S] - d[S]);
  const vf first = 4.0f * d[0] - 5.0f * d[2 * S] + d[4 * S], last = 4.0f * d[S] - 5.0f * d[3 * S] + d[5 * S];
  d[0] = first, d[S] = a + b, d[2 * S] = a - b, d[3 * S] = c + e, d[4 * S] = c - e, d[5 * S] = last;
}
template <int S> static inline void outputs(vf* m) {  // A': 6 -> 4
  const vf s = m[S] + m[2 * S], d = m[S] - m[2 * S], s2 = m[3 * S] + m[4 * S], d2 = m[3 * S] - m[4 * S];
  m[0] = m[0] + s + s2, m[S] = d + 2.0f * d2, m[2 * S] = s + 4.0f * s2, m[3 * S] = d + 8.0f * d2 + m[5 * S];
}
template <int S> static inline void gradients(vf* y) {  // A: 4 -> 6
  const vf e = y[0] + y[2 * S], o = y[S] + y[3 * S], e2 = y[0] + 4.0f * y[2 * S], o2 = 2.0f * y[S] + 8.0f * y[3 * S];
  y[5 * S] = y[3 * S], y[S] = e + o, y[2 * S] = e - o, y[3 * S] = e2 + o2, y[4 * S] = e2 - o2;
}
template <int S> static inline void weights(vf* g) {  // G: 3 -> 6
  const vf s = (g[0] + g[2 * S]) * (-1.0f / 6), h = g[S] * (1.0f / 6);
  const vf u = g[0] * (1.0f / 24) + g[2 * S] * (1.0f / 6), k = g[S] * (1.0f / 12);
  g[5 * S] = g[2 * S], g[0] = g[0] * 0.25f, g[S] = s - h, g[2 * S] = s + h, g[3 * S] = u + k, g[4 * S] = u - k;
}
template <int S> static inline void weight_gradients(vf* t) {  // G': 6 -> 3
  const vf s = (t[S] + t[2 * S]) * (-1.0f / 6), u = t[3 * S] + t[4 * S];
  const vf middle = (t[2 * S] - t[S]) * (1.0f / 6) + (t[3 * S] - t[4 * S]) * (1.0f / 12);
  t[0] = t[0] * 0.25f + s + u * (1.0f / 24), t[S] = middle, t[2 * S] = s + u * (1.0f / 6) + t[5 * S];
}

// Columns of the products: tiles by vectors of images.
struct Units {
  const ConvImages& s;
  int64_t across, down, vectors, count;

  explicit Units(const ConvImages& s) : s(s) {
    across = (s.out_width + 3) / 4, down = (s.out_height + 3) / 4, vectors = (s.batch + W - 1) / W;
    count = across * down * vectors;
  }
  int64_t first_image(int64_t u) const { return u % vectors * W; }
  int64_t row(int64_t u) const { return u / vectors / across * 4; }
  int64_t column(int64_t u) const { return u / vectors % across * 4; }
  int64_t images(int64_t u) const { return smaller(W, s.batch - first_image(u)); }
};

template <typename T> static inline vf get(const T* p, int64_t n) { return n == W ? load(p) : load_first(p, n); }
template <typename T> static inline void put(T* p, vf v, int64_t n) { n == W ? store(p, v) : store_first(p, v, n); }

// N x N positions from (row, column) of a plane [height][width][batch], 0 outside it, to d[6 * i + j]. The next plane
// comes next: it is fetched.
template <int N, typename T>
static inline void gather(const T* plane, int64_t height, int64_t width, int64_t batch, int64_t row, int64_t column,
                          int64_t n, vf* d) {
  if (row >= 0 && column >= 0 && row + N <= height && column + N <= width && n == W) {
    const T* p = plane + (row * width + column) * batch;
    const T* next = p + height * width * batch;
    for (int i = 0; i < N; i++, p += width * batch, next += width * batch)
      for (int j = 0; j < N; j++) {
        d[6 * i + j] = load(p + j * batch);
        __builtin_prefetch(next + j * batch);
      }
    return;
  }
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      const int64_t h = row + i, w = column + j;
      const bool inside = h >= 0 && h < height && w >= 0 && w < width;
      d[6 * i + j] = inside ? get(plane + (h * width + w) * batch, n) : splat(0.0f);
    }
}

// All 36 points of unit u of one input channel, `stride` floats from point to point.
template <typename T> void transform_input(const Units& units, const T* plane, int64_t u, float* out, int64_t stride) {
  const ConvImages& s = units.s;
  vf d[POINTS];
  gather<6>(plane + units.first_image(u), s.height, s.width, s.batch, units.row(u) - s.top, units.column(u) - s.left,
            units.images(u), d);
  for (int j = 0; j < 6; j++) inputs<6>(d + j);
  for (int i = 0; i < 6; i++) {
    inputs<1>(d + 6 * i);
    for (int j = 0; j < 6; j++) store(out + (6 * i + j) * stride, d[6 * i + j]);
  }
}

template <typename T>
void transform_gradient(const Units& units, const T* plane, int64_t u, float* out, int64_t stride) {
  const ConvImages& s = units.s;
  vf d[POINTS];
  gather<4>(plane + units.first_image(u), s.out_height, s.out_width, s.batch, units.row(u), units.column(u),
            units.images(u), d);
  for (int j = 0; j < 4; j++) gradients<6>(d + j);
  for (int i = 0; i < 6; i++) {
    gradients<1>(d + 6 * i);
    for (int j = 0; j < 6; j++) store(out + (6 * i + j) * stride, d[6 * i + j]);
  }
}

template <typename T>
void transform_output(const Units& units, const float* in, int64_t stride, float bias, int64_t u, T* plane) {
  const ConvImages& s = units.s;
  vf m[POINTS];
  for (int p = 0; p < POINTS; p++) m[p] = load(in + p * stride);
  for (int j = 0; j < 6; j++) outputs<6>(m + j);
  const int64_t n = units.images(u), high = smaller(4, s.out_height - units.row(u)),
                wide = smaller(4, s.out_width - units.column(u));
  T* to = plane + (units.row(u) * s.out_width + units.column(u)) * s.batch + units.first_image(u);
  for (int64_t i = 0; i < high; i++, to += s.out_width * s.batch) {
    outputs<1>(m + 6 * i);
    for (int64_t j = 0; j < wide; j++) {
      put(to + j * s.batch, m[6 * i + j] + splat(bias), n);
      __builtin_prefetch(to + j * s.batch + s.out_height * s.out_width * s.batch, 1);  // the next plane
    }
  }
}

// All 36 points of a row's weights for up to W channels from c on, `stride` floats from point to point.
void transform_weights(const ConvFilter& f, const float* w, int64_t row, int64_t c, float* out, int64_t stride) {
  const int64_t n = smaller(W, f.channels - c);
  vf g[POINTS];
  for (int t = 0; t < 9; t++) {
    const float* from = w + row * f.row_size + c * f.channel_size + (f.flip ? 8 - t : t);
    vf lanes = {};
    if (n == W) {
      SPARSE_UNROLL
      for (int64_t i = 0; i < W; i++) lanes[i] = from[i * f.channel_size];
    } else {
      for (int64_t i = 0; i < n; i++) lanes[i] = from[i * f.channel_size];
    }
    g[t / 3 * 6 + t % 3] = lanes;
  }
  for (int j = 0; j < 3; j++) weights<6>(g + j);
  for (int i = 0; i < 6; i++) {
    weights<1>(g + 6 * i);
    for (int j = 0; j < 6; j++) put(out + (6 * i + j) * stride + c, g[6 * i + j], n);
  }
}

// The first N units of m [ROWS][UNITS * W] = u [ROWS][n] times v [n][UNITS * W]
template <int N> void multiply(const float* u, const float* v, int64_t n, float* m) {
  vf sum[ROWS][N] = {};
  for (int64_t c = 0; c < n; c++, u++, v += UNITS * W) {
    vf w[ROWS];
    SPARSE_UNROLL
    for (int k = 0; k < ROWS; k++) w[k] = splat(u[k * n]);
    SPARSE_UNROLL
    for (int r = 0; r < N; r++) {
      const vf x = load(v + r * W);
      SPARSE_UNROLL
      for (int k = 0; k < ROWS; k++) sum[k][r] += w[k] * x;
    }
  }
  SPARSE_UNROLL
  for (int k = 0; k < ROWS; k++) SPARSE_UNROLL
  for (int r = 0; r < N; r++) store(m + (k * UNITS + r) * W, sum[k][r]);
}

constexpr decltype(&multiply<1>) MULTIPLY[UNITS] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>};

// out [ROWS][4], `step` floats from row to row, += d row k times v row t, or = in the first step, over `run` floats.
void correlate(const float* d, const float* v, int64_t run, bool first, float* out, int64_t step) {
  const float zero[4] = {};
  vf sum[ROWS][4] = {};
  for (int64_t i = 0; i < run; i += W) {
    vf rows[ROWS];
    SPARSE_UNROLL
    for (int k = 0; k < ROWS; k++) rows[k] = load(d + k * run + i);
    SPARSE_UNROLL
    for (int t = 0; t < 4; t++) {
      const vf x = load(v + t * run + i);
      SPARSE_UNROLL
      for (int k = 0; k < ROWS; k++) sum[k][t] += rows[k] * x;
    }
  }
  SPARSE_UNROLL
  for (int k = 0; k < ROWS; k++) add_sums(out + k * step, sum[k], first ? zero : out + k * step);
}

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// Floats from point to point: an odd number of cache lines, so that the points of a unit do not share a cache set.
int64_t apart(int64_t n) { return (up(n, 16) / 16 | 1) * 16; }

template <typename T>
void apply(const ConvImages& s, const ConvFilter& f, const T* x, const float* w, const float* bias, T* y, int threads) {
  const int64_t run = UNITS * W, block_bytes = POINTS * f.channels * run * sizeof(float);
  // Few channels: a block of inputs stays in L2 while the weights pass by, a few rows at a time. Many: the weights are
  // what is large, and several blocks share one pass over them.
  const bool few = block_bytes <= L2;
  const int64_t part = few ? PART : up(f.rows, ROWS), rows = up(f.rows, part), parts = rows / part;
  const int64_t step = apart(part * f.channels);  // from point to point of a part
  const Scratch<float> transformed(parts * POINTS * step, "the transformed weights of a convolution");
  float* u = transformed;  // [part of rows][point][row of the part][channel]
  if (f.rows < rows)
    for (int p = 0; p < POINTS; p++)
      memset(u + ((parts - 1) * POINTS + p) * step + (f.rows - (parts - 1) * part) * f.channels, 0,
             (rows - f.rows) * f.channels * sizeof(float));
  parallel_for((f.rows + CHUNK - 1) / CHUNK, threads, [&](int64_t chunk) {
    for (int64_t c = 0; c < f.channels; c += W)
      for (int64_t row = chunk * CHUNK; row < f.rows && row < (chunk + 1) * CHUNK; row++)
        transform_weights(f, w, row, c, u + row / part * POINTS * step + row % part * f.channels, step);
  });
  const Units units(s);
  const int64_t blocks = (units.count + UNITS - 1) / UNITS,
                together = few ? 1 : smaller(MANY, up(blocks, threads) / threads);
  parallel_for((blocks + together - 1) / together, threads, [&](int64_t group) {
    const int64_t first = group * together, last = smaller(first + together, blocks), count = last - first;
    const int64_t in_step = apart(count * f.channels * run), out_step = apart(count * part * run);
    const Scratch<float> memory(POINTS * (in_step + out_step), "the transformed images of a convolution");
    float* v = memory;                // [point][block][channel][run]
    float* m = v + POINTS * in_step;  // [point][block][row of the part][run]
    const int64_t end = smaller(last * UNITS, units.count);
    for (int64_t c = 0; c < f.channels; c++)
      for (int64_t k = first * UNITS; k < end; k++)
        transform_input(units, x + c * s.height * s.width * s.batch, k,
                        v + ((k / UNITS - first) * f.channels + c) * run + k % UNITS * W, in_step);
    for (int64_t o = 0; o < f.rows; o += part) {
      for (int p = 0; p < POINTS; p++)
        for (int64_t b = 0; b < count; b++) {
          const auto run_units = MULTIPLY[smaller(UNITS, end - (first + b) * UNITS) - 1];
          for (int64_t r = 0; r < part; r += ROWS)
            run_units(u + (o / part * POINTS + p) * step + r * f.channels, v + p * in_step + b * f.channels * run,
                      f.channels, m + p * out_step + (b * part + r) * run);
        }
      for (int64_t r = 0; r < part && o + r < f.rows; r++)
        for (int64_t k = first * UNITS; k < end; k++)
          transform_output(units, m + ((k / UNITS - first) * part + r) * run + k % UNITS * W, out_step,
                           bias ? bias[o + r] : 0.0f, k, y + (o + r) * s.out_height * s.out_width * s.batch);
    }
  });
}

// dw [rows][channels][9] of the whole weight.
template <typename T>
void gradient(const ConvImages& s, int64_t out, int64_t channels, const T* x, const T* dy, float* dw, int threads) {
  const int64_t rows = up(out, ROWS), in = up(channels, 4), run = smaller(GRADIENT_UNITS, Units(s).count) * W;
  const int64_t sum_step = apart(rows * in);
  const Scratch<float> total(POINTS * sum_step, "the transformed weight gradients of a convolution");
  float* sums = total;
  const int64_t in_step = apart(in * run), out_step = apart(rows * run);
  const Scratch<float> memory(POINTS * (in_step + out_step), "the transformed images of a convolution");
  float* v = memory;
  float* d = v + POINTS * in_step;
  if (rows > out || in > channels) memset(v, 0, POINTS * (in_step + out_step) * sizeof(float));
  const Units units(s);
  for (int64_t first = 0; first < units.count; first += GRADIENT_UNITS) {
    const int64_t last = smaller(first + GRADIENT_UNITS, units.count), n = (last - first) * W;
    parallel_for(channels + out, threads, [&](int64_t c) {
      for (int64_t k = first; k < last; k++)
        if (c < channels)
          transform_input(units, x + c * s.height * s.width * s.batch, k, v + c * n + (k - first) * W, in_step);
        else
          transform_gradient(units, dy + (c - channels) * s.out_height * s.out_width * s.batch, k,
                             d + (c - channels) * n + (k - first) * W, out_step);
    });
    parallel_for(POINTS, threads, [&](int64_t p) {
      for (int64_t chunk = 0; chunk < in; chunk += CHUNK)
        for (int64_t o = 0; o < rows; o += ROWS)
          for (int64_t c = chunk; c < in && c < chunk + CHUNK; c += 4) {
            float* to = sums + p * sum_step + o * in + c;
            correlate(d + p * out_step + o * n, v + p * in_step + c * n, n, first == 0, to, in);
          }
    });
  }
  parallel_for(out, threads, [&](int64_t o) {
    for (int64_t c = 0; c < channels; c += W) {
      const int64_t n = smaller(W, channels - c);
      vf t[POINTS];
      for (int p = 0; p < POINTS; p++) t[p] = load_first(sums + p * sum_step + o * in + c, n);
      for (int j = 0; j < 6; j++) weight_gradients<6>(t + j);
      for (int i = 0; i < 3; i++) {
        weight_gradients<1>(t + 6 * i);
        for (int j = 0; j < 3; j++) {
          float lanes[W];
          store(lanes, t[6 * i + j]);
          for (int64_t k = 0; k < n; k++) dw[(o * channels + c + k) * 9 + 3 * i + j] = lanes[k];
        }
      }
    }
  });
}

}  // namespace

void conv_winograd(ConvImages s, ConvFilter f, const float* x, const float* w, const float* bias, float* y,
                   int threads) {
  apply(s, f, x, w, bias, y, threads);
}

void conv_winograd_bf16(ConvImages s, ConvFilter f, const bf16* x, const float* w, const float* bias, bf16* y,
                        int threads) {
  apply(s, f, x, w, bias, y, threads);
}

void conv_winograd_gradient(ConvImages s, int64_t out, int64_t channels, const float* x, const float* dy, float* dw,
                            int threads) {
  gradient(s, out, channels, x, dy, dw, threads);
}

void conv_winograd_gradient_bf16(ConvImages s, int64_t out, int64_t channels, const bf16* x, const bf16* dy, float* dw,
                                 int threads) {
  gradient(s, out, channels, x, dy, dw, threads);
}

}  // namespace SPARSE_ISA
