// Group normalisation on batch-last tensors [channel][position][batch], forward and backward.
//
// The statistics are one number per sample, hence vectors over the batch: a group is a matrix whose rows are batches,
// and its columns are summed without a horizontal sum. A small batch takes several positions into one row.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "layers/norm.h"

namespace SPARSE_ISA {
namespace {

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

template <typename T>
void forward(const NormShape& s, const T* x, const float* gamma, const float* beta, double eps, bool relu, T* y,
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

template <typename T>
void backward(const NormShape& s, const T* dy, const T* x, const float* mean, const float* rstd, const float* gamma,
              const float* beta, bool relu, T* dx, float* dgamma, float* dbeta, int threads) {
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

}  // namespace

void group_norm(NormShape s, const float* x, const float* gamma, const float* beta, double eps, bool relu, float* y,
                float* mean, float* rstd, int threads) {
  forward(s, x, gamma, beta, eps, relu, y, mean, rstd, threads);
}

void group_norm_bf16(NormShape s, const bf16* x, const float* gamma, const float* beta, double eps, bool relu, bf16* y,
                     float* mean, float* rstd, int threads) {
  forward(s, x, gamma, beta, eps, relu, y, mean, rstd, threads);
}

void group_norm_backward(NormShape s, const float* dy, const float* x, const float* mean, const float* rstd,
                         const float* gamma, const float* beta, bool relu, float* dx, float* dgamma, float* dbeta,
                         int threads) {
  backward(s, dy, x, mean, rstd, gamma, beta, relu, dx, dgamma, dbeta, threads);
}

void group_norm_backward_bf16(NormShape s, const bf16* dy, const bf16* x, const float* mean, const float* rstd,
                              const float* gamma, const float* beta, bool relu, bf16* dx, float* dgamma, float* dbeta,
                              int threads) {
  backward(s, dy, x, mean, rstd, gamma, beta, relu, dx, dgamma, dbeta, threads);
}

}  // namespace SPARSE_ISA
