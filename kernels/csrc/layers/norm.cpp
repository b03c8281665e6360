// Group and batch normalisation on batch-last tensors [channel][position][batch], forward and backward.
//
// Group norm: the statistics are one number a sample, hence vectors over the batch: a group is a matrix whose rows are
// batches, and its columns are summed without a horizontal sum. A small batch takes several positions into one row.
// Batch norm: a channel is one run of floats, a matrix of 32 columns and a rest.
// The second pass over a group or channel goes from the end to the beginning: what the first one read last is in cache.
//
// Sums of x and x^2 are about a shift: the mean of the first four of every 64 rows. A shift out of the chunk bounds the
// cancellation, whatever the mean: the sum of squares is at most 1 + 64 / 4 times the one about the chunk's own mean.
// From chunk to chunk the sums go on in double.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
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

// Mean of every column, and the sum of the squares about it.
void moments(const Matrix& m, const float* x, double* mean, double* squares) {
  for (int64_t i = 0; i < num_slots(m.columns); i++) mean[i] = squares[i] = 0;
  sweep<false>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K, N = K * W;
    const float* p = x + at;
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
  for (int64_t i = 0; i < m.columns; i++) mean[i] = x[i] + mean[i] * share;
}

template <bool relu> void apply(const Matrix& m, Affine f, const float* x, float* y) {
  sweep<true>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K;
    vf mean[K], scale[K];
    for (int k = 0; k < K; k++) mean[k] = c.get(f.mean, k), scale[k] = c.get(f.rstd, k) * f.gamma;
    const vf beta = splat(f.beta);
    const float* from = x + at;
    float* to = y + at;
    for (int64_t r = 0; r < rows; r++, from += m.stride, to += m.stride)
      for (int k = 0; k < K; k++) {
        const vf v = (c.get(from, k) - mean[k]) * scale[k] + beta;
        c.put(to, k, relu ? positive(v) : v);
      }
  });
}

// Sums of dy and of dy (x - mean) over the rows; with relu, of the dy that pass it.
template <bool relu>
void sums(const Matrix& m, Affine f, const float* x, const float* dy, float* ones, float* products) {
  for (int64_t i = 0; i < num_slots(m.columns); i++) ones[i] = products[i] = 0;
  sweep<false>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K;
    vf mean[K], scale[K], s[K], q[K];
    for (int k = 0; k < K; k++) {
      mean[k] = c.get(f.mean, k), scale[k] = c.get(f.rstd, k) * f.gamma;
      s[k] = q[k] = vf{};
    }
    const vf beta = splat(f.beta);
    const float *p = x + at, *dp = dy + at;
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
template <bool relu>
void input_gradient(const Matrix& m, Affine f, const float* a, const float* b, const float* x, const float* dy,
                    float* dx) {
  sweep<true>(m, [&](auto c, int64_t at, int64_t rows) {
    constexpr int K = decltype(c)::K;
    vf mean[K], scale[K], constant[K], slope[K];
    for (int k = 0; k < K; k++) {
      mean[k] = c.get(f.mean, k), scale[k] = c.get(f.rstd, k) * f.gamma;
      constant[k] = c.get(a, k), slope[k] = c.get(b, k);
    }
    const vf beta = splat(f.beta);
    const float *p = x + at, *dp = dy + at;
    float* to = dx + at;
    for (int64_t r = 0; r < rows; r++, p += m.stride, dp += m.stride, to += m.stride)
      for (int k = 0; k < K; k++) {
        const vf d = c.get(p, k) - mean[k];
        vf g = c.get(dp, k);
        if (relu) g = where_positive(d * scale[k] + beta, g);
        c.put(to, k, g * scale[k] - (d * slope[k] + constant[k]));
      }
  });
}

double total(const float* p, int64_t n) {
  vf sums = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) sums += load(p + i);
  return sum(i < n ? sums + load_first(p + i, n - i) : sums);
}

// Columns n, n + samples, ... are parts of one sample: their moments in column n.
void merge(double* means, double* squares, int64_t samples, int64_t columns, int64_t rows) {
  for (int64_t n = 0; n < samples; n++) {
    double all = 0, square = 0;
    for (int64_t j = n; j < columns; j += samples) all += means[j];
    all /= columns / samples;
    for (int64_t j = n; j < columns; j += samples) square += squares[j] + rows * (means[j] - all) * (means[j] - all);
    means[n] = all, squares[n] = square;
  }
}

// What belongs to the samples, to every column; may be in place.
inline void repeat(const float* from, int64_t samples, float* to, int64_t columns) {
  for (int64_t i = from == to ? samples : 0; i < columns; i += samples) memcpy(to + i, from, samples * sizeof(float));
}

// How a group becomes matrices. Columns are cut into units where there are many, or few groups to share out.
struct Groups {
  NormShape s;
  int64_t fold;  // positions in a row: more than one where the batch is small, and then there is one unit
  int64_t width, units;

  explicit Groups(const NormShape& shape) : s(shape), fold(1), width(shape.groups < 8 ? NARROW : WIDE), units(1) {
    for (int64_t p = 1; p <= s.size && p * s.batch <= WIDE && fold * s.batch < NARROW; p++)
      if (s.size % p == 0) fold = p;
    if (fold == 1 && s.batch >= width) units = s.batch / width;
  }

  struct Unit {
    int64_t channels, first_channel, samples, index;
    int64_t at, statistics;  // where it begins in x, and in mean and rstd
    Matrix channel;
    int64_t offset(int64_t c) const { return at + c * channel.rows * channel.stride; }
  };
  Unit unit(int64_t i) const {
    const int64_t group = i / units, index = i % units, channels = s.channels / s.groups;
    const int64_t samples = index + 1 < units ? width : s.batch - index * width;
    return {channels,
            group * channels,
            samples,
            index,
            group * channels * s.size * s.batch + index * width,
            group * s.batch + index * width,
            {s.size / fold, fold * s.batch, fold * samples}};
  }
};

// The parts of a channel of batch norm: rows of 32 columns, and a rest of fewer.
struct Part {
  int64_t at;
  Matrix matrix;
};
struct Parts {
  Part all[2];
  int count = 0;
  explicit Parts(int64_t length) {
    const int64_t rest = length % NARROW;
    if (length >= NARROW) all[count++] = {0, {length / NARROW, NARROW, NARROW}};
    if (rest) all[count++] = {length - rest, {1, rest, rest}};
  }
  const Part* begin() const { return all; }
  const Part* end() const { return all + count; }
};

inline void fill(float* p, float value) {
  for (int64_t i = 0; i < NARROW; i++) p[i] = value;
}

}  // namespace

void group_norm(NormShape s, const float* x, const float* gamma, const float* beta, double eps, bool relu, float* y,
                float* mean, float* rstd, int threads) {
  const Groups groups(s);
  parallel_for(s.groups * groups.units, threads, [&](int64_t i) {
    const Groups::Unit u = groups.unit(i);
    const Matrix& m = u.channel;
    const int64_t rows = u.channels * m.rows;
    double means[SLOTS], squares[SLOTS];
    float mu[SLOTS], inverse[SLOTS];
    moments({rows, m.stride, m.columns}, x + u.at, means, squares);
    if (groups.fold > 1) merge(means, squares, u.samples, m.columns, rows);
    float *mean_at = mean + u.statistics, *rstd_at = rstd + u.statistics;
    const double share = 1 / double(rows * groups.fold);
    for (int64_t n = 0; n < u.samples; n++) mean_at[n] = float(means[n]);
    for (int64_t n = 0; n < u.samples; n++) rstd_at[n] = float(1 / __builtin_sqrt(squares[n] * share + eps));
    repeat(mean_at, u.samples, mu, m.columns);
    repeat(rstd_at, u.samples, inverse, m.columns);
    with_flag(relu, [&](auto flag) {
      for (int64_t c = u.channels; c-- > 0;) {
        const int64_t at = u.offset(c);
        apply<decltype(flag)::value>(m, Affine(mu, inverse, gamma, beta, u.first_channel + c), x + at, y + at);
      }
    });
  });
}

void group_norm_backward(NormShape s, const float* dy, const float* x, const float* mean, const float* rstd,
                         const float* gamma, const float* beta, bool relu, float* dx, float* dgamma, float* dbeta,
                         int threads) {
  const Groups groups(s);
  const Scratch<double> parts(2 * groups.units * s.channels, "the parts of a norm's gradients");
  parallel_for(s.groups * groups.units, threads, [&](int64_t i) {
    const Groups::Unit u = groups.unit(i);
    const Matrix& m = u.channel;
    float mu[SLOTS], inverse[SLOTS], ones[SLOTS], products[SLOTS], a[SLOTS] = {}, b[SLOTS] = {};
    repeat(mean + u.statistics, u.samples, mu, m.columns);
    repeat(rstd + u.statistics, u.samples, inverse, m.columns);
    with_flag(relu, [&](auto flag) {
      constexpr bool with_relu = decltype(flag)::value;
      for (int64_t c = 0; c < u.channels; c++) {
        const Affine f(mu, inverse, gamma, beta, u.first_channel + c);
        sums<with_relu>(m, f, x + u.offset(c), dy + u.offset(c), ones, products);
        for (int64_t j = 0; j < m.columns; j++) {
          products[j] *= inverse[j];
          a[j] += f.gamma * ones[j];
          b[j] += f.gamma * products[j];
        }
        double* part = parts + 2 * (u.index * s.channels + u.first_channel + c);
        part[0] = total(products, m.columns), part[1] = total(ones, m.columns);
      }
      for (int64_t i = u.samples; i < m.columns; i += u.samples)
        for (int64_t n = 0; n < u.samples; n++) a[n] += a[i + n], b[n] += b[i + n];
      const double share = 1 / double(u.channels * s.size);
      for (int64_t n = 0; n < u.samples; n++) {
        a[n] = float(a[n] * share * inverse[n]);
        b[n] = float(b[n] * share * inverse[n] * inverse[n]);
      }
      repeat(a, u.samples, a, m.columns);
      repeat(b, u.samples, b, m.columns);
      for (int64_t c = u.channels; c-- > 0;) {
        const int64_t at = u.offset(c);
        const Affine f(mu, inverse, gamma, beta, u.first_channel + c);
        input_gradient<with_relu>(m, f, a, b, x + at, dy + at, dx + at);
      }
    });
  });
  for (int64_t c = 0; c < s.channels; c++) {
    double scale = 0, shift = 0;
    for (int64_t unit = 0; unit < groups.units; unit++) {
      scale += parts[2 * (unit * s.channels + c)];
      shift += parts[2 * (unit * s.channels + c) + 1];
    }
    if (dgamma) dgamma[c] = float(scale);
    if (dbeta) dbeta[c] = float(shift);
  }
}

void batch_norm(NormShape s, const float* x, const float* gamma, const float* beta, double eps, bool relu,
                bool training, RunningStatistics running, float* y, float* mean, float* rstd, int threads) {
  const int64_t length = s.size * s.batch;
  const Parts parts(length);
  parallel_for(s.channels, threads, [&](int64_t channel) {
    const int64_t at = channel * length;
    if (training) {
      double means[2][SLOTS], squares[2][SLOTS], all = 0, square = 0;
      int i = 0;
      for (const Part& p : parts) {
        moments(p.matrix, x + at + p.at, means[i], squares[i]);
        for (int64_t j = 0; j < p.matrix.columns; j++) all += p.matrix.rows * means[i][j];
        i++;
      }
      all /= length, i = 0;
      for (const Part& p : parts) {
        for (int64_t j = 0; j < p.matrix.columns; j++)
          square += squares[i][j] + p.matrix.rows * (means[i][j] - all) * (means[i][j] - all);
        i++;
      }
      mean[channel] = float(all);
      rstd[channel] = float(1 / __builtin_sqrt(square / length + eps));
      if (running.mean) running.mean[channel] += float(running.momentum * (all - running.mean[channel]));
      if (running.var) running.var[channel] += float(running.momentum * (square / (length - 1) - running.var[channel]));
    }
    float mu[NARROW], inverse[NARROW];
    fill(mu, mean[channel]), fill(inverse, rstd[channel]);
    const Affine f(mu, inverse, gamma, beta, channel);
    with_flag(relu, [&](auto flag) {
      for (const Part& p : parts) apply<decltype(flag)::value>(p.matrix, f, x + at + p.at, y + at + p.at);
    });
  });
}

void batch_norm_backward(NormShape s, const float* dy, const float* x, const float* mean, const float* rstd,
                         const float* gamma, const float* beta, bool relu, bool training, float* dx, float* dgamma,
                         float* dbeta, int threads) {
  const int64_t length = s.size * s.batch;
  const Parts parts(length);
  parallel_for(s.channels, threads, [&](int64_t channel) {
    const int64_t at = channel * length;
    float mu[NARROW], inverse[NARROW], a[NARROW], b[NARROW], ones[SLOTS], products[SLOTS];
    fill(mu, mean[channel]), fill(inverse, rstd[channel]);
    const Affine f(mu, inverse, gamma, beta, channel);
    double scale = 0, shift = 0;
    with_flag(relu, [&](auto flag) {
      constexpr bool with_relu = decltype(flag)::value;
      for (const Part& p : parts) {
        sums<with_relu>(p.matrix, f, x + at + p.at, dy + at + p.at, ones, products);
        shift += total(ones, p.matrix.columns), scale += rstd[channel] * total(products, p.matrix.columns);
      }
      const double along = training ? f.gamma * rstd[channel] / double(length) : 0;
      fill(a, float(along * shift)), fill(b, float(along * rstd[channel] * scale));
      for (const Part& p : parts)
        input_gradient<with_relu>(p.matrix, f, a, b, x + at + p.at, dy + at + p.at, dx + at + p.at);
    });
    if (dgamma) dgamma[channel] = float(scale);
    if (dbeta) dbeta[channel] = float(shift);
  });
}

}  // namespace SPARSE_ISA
