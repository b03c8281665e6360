#include "program/conv.h"

#include <algorithm>

namespace sparsefl::program {
namespace {

constexpr int64_t ROWS = 3;  // rows that the dense kernel takes together

template <typename T> T* sized(std::vector<T>& v, int64_t n) {
  v.resize(n);
  return v.data();
}

int64_t block_of(const Pass& p, int64_t channels, double density, int64_t used) {
  int64_t block = p.block;
  do {
    if (block >= channels || density * block * used >= p.few) break;
    block *= 2;
  } while (p.often);
  const int64_t blocks = (channels + block - 1) / block;
  return (channels + blocks - 1) / blocks;  // alike
}

int64_t channel_bytes(const Direction& d) {
  return d.itemsize * d.planes.phases * d.planes.phases * d.planes.plane_size;
}

// Calls use(row, column, packed position) for every stored entry of a weight [rows, columns].
template <typename Use> void each_entry(const uint64_t* words, int64_t rows, int64_t columns, Use use) {
  int64_t position = 0;
  if (!words) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) use(r, c, position++);
    return;
  }
  const int64_t count = (rows * columns + 63) / 64;
  int64_t row = 0, end = columns;
  for (int64_t i = 0; i < count; i++)
    for (uint64_t m = words[i]; m; m &= m - 1) {
      const int64_t e = i * 64 + __builtin_ctzll(m);
      while (e >= end) row++, end += columns;
      use(row, e - (end - columns), position++);
    }
}

}  // namespace

void Conv::adopt(const Ops& ops, const Arenas& model) {
  const uint64_t* words = weight.words(model);
  const int64_t count = words ? (weight.size() + 63) / 64 : 0;
  if (made_on_ == &ops && int64_t(words_.size()) == count && std::equal(words_.begin(), words_.end(), words)) return;
  made_on_ = nullptr;  // until all are made
  const int64_t stored = weight.stored(model);
  for (Direction& d : directions) make(ops, d, stored < weight.size() ? words : nullptr, stored);
  words_.assign(words, words + count);
  made_on_ = &ops;
}

// words: null where everything is stored.
void Conv::make(const Ops& ops, Direction& d, const uint64_t* words, int64_t stored) {
  if (!d.dense) list_entries(ops, d, words, stored);
  d.orders.resize(d.passes.size());
  for (size_t i = 0; i < d.passes.size(); i++) {
    const Pass& pass = d.passes[i];
    Order& o = d.orders[i];
    int64_t used = 0;
    for (int64_t at : pass.taps) used += at >= 0;
    const double density = d.weights ? double(stored) / weight.size() : 1.0;
    o.block = block_of(pass, d.planes.channels, density, used > 0 ? used : 1);
    if (d.dense)
      make_dense(d, pass, words, used, o);
    else
      make_sparse(d.ops(ops), d, pass, o);
  }
}

// CSR of the weight, or its transpose.
void Conv::list_entries(const Ops& ops, const Direction& d, const uint64_t* words, int64_t stored) {
  const int64_t columns = weight.in * weight.taps;
  std::vector<uint64_t> full;
  if (!words) {
    full.assign((weight.size() + 63) / 64, ~0ull);
    if (weight.size() % 64) full.back() = (1ull << weight.size() % 64) - 1;
    words = full.data();
  }
  if (d.transposed)
    ops.bitmap_transpose(words, weight.out, columns, sized(pointers_, columns + 1), sized(indices_, stored),
                         sized(positions_, stored), stored);
  else
    ops.bitmap_csr(words, weight.out, columns, sized(pointers_, weight.out + 1), sized(indices_, stored), stored);
}

// Every tap of every channel for every row; where its weight is among the packed values, or -1.
void Conv::make_dense(const Direction& d, const Pass& pass, const uint64_t* words, int64_t used, Order& o) const {
  const int64_t rows = d.transposed ? weight.in : weight.out, taps = d.planes.channels * used;
  const int64_t together = d.pairs ? 2 : 1;      // channels of an entry of the planes
  std::vector<int64_t> number(weight.taps, -1);  // of a tap among those of this pass
  for (int64_t t = 0, n = 0; t < weight.taps; t++)
    if (pass.taps[t] >= 0) number[t] = n++;
  uint32_t* offsets = sized(o.offsets, taps);
  for (int64_t c = 0; c < d.planes.channels; c++)
    for (int64_t at : pass.taps)
      if (at >= 0) *offsets++ = uint32_t(c * channel_bytes(d) + at);
  o.dense = {rows, taps, o.block * (used > 0 ? used : 1), o.offsets.data()};
  o.index.assign(d.weights ? (rows + ROWS - 1) / ROWS * ROWS * taps * together : 0, -1);
  if (!d.weights) return;
  each_entry(words, weight.out, weight.in * weight.taps, [&](int64_t out, int64_t column, int64_t position) {
    const int64_t in = column / weight.taps, tap = number[column % weight.taps];
    if (tap < 0) return;
    const int64_t row = d.transposed ? in : out, channel = d.transposed ? out : in;
    const int64_t at = channel / together * used + tap, place = (row / ROWS * taps + at) * ROWS + row % ROWS;
    o.index[place * together + channel % together] = int32_t(position);
  });
}

void Conv::make_sparse(const Ops& ops, const Direction& d, const Pass& pass, Order& o) {
  const int64_t rows = d.transposed ? weight.in : weight.out, channels = d.planes.channels;
  o.group = ops.conv_group();
  const ConvPattern pattern{
      d.transposed,    rows, weight.taps, pointers_.data(), indices_.data(), d.transposed ? positions_.data() : nullptr,
      pass.taps.data()};
  const int64_t visits = (channels + o.block - 1) / o.block * rows;
  int32_t *starts = sized(o.starts, visits + 1), *order = sized(o.order, visits);
  const int64_t n = ops.conv_count(pattern, channels, o.block, o.group, starts, order);
  ops.conv_fill(pattern, channels, o.block, o.group, channel_bytes(d), starts, order, sized(o.offsets, n + 4),
                sized(o.index, n + 1));
  if (!d.transposed) {  // a visit's weights lie side by side in the packed values
    o.index[n] = 0;     // an empty visit may start at the end
    int32_t* at = sized(o.at, visits);
    for (int64_t k = 0; k < visits; k++) at[k] = o.index[starts[k]];
  }
  o.sparse = {rows, visits, starts, order, d.transposed ? nullptr : o.at.data(), o.offsets.data()};
  o.index.resize(n);
}

}  // namespace sparsefl::program
