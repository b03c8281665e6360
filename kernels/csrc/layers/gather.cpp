// A batch out of a data set: samples [n][channel][height][width] of bytes or floats, cropped and mirrored on request,
// to (x - mean) / std in batch-last memory [channel][height][width][batch]. Squares of samples by columns are turned
// over in registers, so every sample is read once and every line of the batch written whole.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/columns.h"
#include "layers/square.h"

namespace SPARSE_ISA {
namespace {

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline vf floats(const uint8_t* p) { return to_float(load_bytes(p)); }
inline vf floats(const float* p) { return load(p); }

template <typename T> struct SquareFor;
template <> struct SquareFor<uint8_t> : SquareOf<uint8_t, v16> {};
template <> struct SquareFor<float> : SquareOf<float, vf> {};

// Which samples, and how each is moved.
struct Batch {
  const int64_t* indices;
  int64_t size;
  Moves moves;

  bool moved() const { return moves.rows || moves.columns || moves.mirrored; }
  int64_t down(int64_t n) const { return moves.rows ? moves.rows[n] - moves.padding : 0; }
  int64_t right(int64_t n) const { return moves.columns ? moves.columns[n] - moves.padding : 0; }
  bool mirrored(int64_t n) const { return moves.mirrored && moves.mirrored[n]; }
};

// Rows that the batch is made of. Without moves, a channel is one row, unless every column has a mean of its own.
struct Rows {
  int64_t of_channel, columns;
  Rows(const Samples& s, bool moved)
      : of_channel(moved || s.column_step ? s.height : 1), columns(s.width * (of_channel == 1 ? s.height : 1)) {}
};

// to[j] = row[first + j], or row[last - first - j] if mirrored, all shifted by `right`; 0 beyond the ends of the row.
template <typename T, int64_t SIDE>
inline void copy_row(const T* row, int64_t columns, int64_t first, int64_t right, bool mirrored, T (&to)[SIDE]) {
  const int64_t at = mirrored ? columns - 1 - first + right : first + right;  // of to[0]
  const int64_t lo = larger(0, mirrored ? at - columns + 1 : -at);
  const int64_t hi = smaller(SIDE, mirrored ? at + 1 : columns - at);

  if (lo > 0 || hi < SIDE) memset(to, 0, sizeof to);
  if (mirrored)
    for (int64_t j = lo; j < hi; j++) to[j] = row[at - j];
  else if (hi - lo == SIDE)
    memcpy(to, row + at, sizeof to);
  else if (lo < hi)
    memcpy(to + lo, row + at + lo, (hi - lo) * sizeof(T));
}

template <typename T, typename To> class Gather {
  using Square = SquareFor<T>;
  static constexpr int64_t SIDE = Square::SIDE;

 public:
  Gather(const Samples& s, const Batch& batch, To* out) : s_(s), batch_(batch), rows_(s, batch.moved()), out_(out) {}

  void run(int threads) const {
    constexpr int64_t CHUNK = 1 << 15;  // entries a thread takes at a time, at least
    const int64_t rows = s_.channels * rows_.of_channel, entries = larger(1, rows_.columns * batch_.size);
    const int64_t few = (CHUNK + entries - 1) / entries;
    parallel_for((rows + few - 1) / few, threads, [&](int64_t chunk) {
      for (int64_t r = chunk * few; r < smaller(rows, (chunk + 1) * few); r++) row(r);
    });
  }

 private:
  // The last square overlaps the one before it, and both write the same; fewer than a square's are written one by one.
  void row(int64_t r) const {
    for (int64_t c = 0; c < rows_.columns; c += SIDE)
      for (int64_t n = 0; n < batch_.size; n += SIDE)
        square(r, larger(0, smaller(c, rows_.columns - SIDE)), larger(0, smaller(n, batch_.size - SIDE)));
  }

  void square(int64_t r, int64_t column, int64_t sample) const {
    Square square;
    const int64_t samples = smaller(SIDE, batch_.size - sample);
    for (int64_t i = 0; i < samples; i++) read(r, column, sample + i, square.rows[i]);
    for (int64_t i = samples; i < SIDE; i++) memset(square.rows[i], 0, sizeof square.rows[i]);
    square.turn();
    const int64_t columns = smaller(SIDE, rows_.columns - column);
    for (int64_t j = 0; j < columns; j++) write(r, column + j, sample, square.rows[j]);
  }

  void read(int64_t r, int64_t column, int64_t n, T (&to)[SIDE]) const {
    const int64_t channel = r / rows_.of_channel, height = rows_.of_channel, y = r % height + batch_.down(n);
    if (y < 0 || y >= height) {
      memset(to, 0, sizeof to);
      return;
    }
    const T* image = static_cast<const T*>(s_.data) + batch_.indices[n] * s_.channels * height * rows_.columns;
    const T* row = image + (channel * height + y) * rows_.columns;
    copy_row(row, rows_.columns, column, batch_.right(n), batch_.mirrored(n), to);
  }

  void write(int64_t r, int64_t column, int64_t sample, const T* from) const {
    const int64_t at = r / rows_.of_channel * s_.channel_step + column * s_.column_step;
    To* to = out_ + (r * rows_.columns + column) * batch_.size;
    for (int64_t i = 0; i < SIDE; i += W) {
      vf x = floats(from + i);
      if (s_.mean) x = (x - s_.mean[at]) / s_.std[at];
      store_until(to + sample + i, x, to + batch_.size);
    }
  }

  const Samples& s_;
  const Batch& batch_;
  const Rows rows_;
  To* const out_;
};

template <typename To> void collect(const Samples& s, const Batch& batch, To* out, int threads) {
  s.bytes ? Gather<uint8_t, To>(s, batch, out).run(threads) : Gather<float, To>(s, batch, out).run(threads);
}

}  // namespace

void gather(Samples s, const int64_t* indices, int64_t batch, Moves moves, float* out, int threads) {
  collect(s, {indices, batch, moves}, out, threads);
}

void gather_bf16(Samples s, const int64_t* indices, int64_t batch, Moves moves, bf16* out, int threads) {
  collect(s, {indices, batch, moves}, out, threads);
}

}  // namespace SPARSE_ISA
