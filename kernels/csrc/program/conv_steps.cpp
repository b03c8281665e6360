#include "program/conv_steps.h"

#include <string.h>

namespace sparsefl::program {
namespace {

// The stored entries of one weight, as operations on models take them.
struct OneSegment {
  int64_t words[2], entries[2], offsets[2];
  OneSegment(int64_t size, int64_t stored) : words{0, (size + 63) / 64}, entries{0, size}, offsets{0, stored} {}
  Segments segments() const { return {1, words, entries}; }
};

const float* start_of(const Run& r, int64_t bias) { return bias < 0 ? nullptr : r.model.rest + bias; }

}  // namespace

void ToPlanes::run(Run& r) const {
  if (pairs_of > 0) {
    const Images<bf16> m{r};
    r.ops.conv_planes_pairs(planes, pairs_of, m[x], m[to], r.threads);
    return;
  }
  with_images(r, [&](auto m) { m.op(r.ops.conv_planes, r.ops.conv_planes_bf16)(planes, m[x], m[to], r.threads); });
}

void ConvApply::run(Run& r) const {
  const Direction& d = conv->directions[direction];
  for (size_t i = 0; i < d.passes.size(); i++) {
    if (d.pairs)
      pairs(r, d, i);
    else
      with_images(r, [&](auto m) { d.dense ? dense(r, m, d, i) : sparse(r, m, d, i); });
  }
}

// Weights of every tap, of pairs of channels, as the instruction takes them.
void ConvApply::pairs(Run& r, const Direction& d, size_t i) const {
  const Images<bf16> m{r};
  const Order& o = d.orders[i];
  bf16 *rounded = reinterpret_cast<bf16*>(r.ordered), *ordered = m[scratch];
  r.ops.narrow(conv->weight.values(r.model), rounded, conv->weight.stored(r.model), r.threads);
  r.ops.conv_pick_bf16(rounded, o.index.data(), o.index.size(), ordered, r.threads);
  d.ops(r.ops).conv_dense_dot(d.planes, o.dense, d.passes[i].output, m[planes], ordered, start_of(r, bias),
                              m[y] + d.passes[i].offset, r.threads);
}

// Weights of every tap are float; zeros where nothing is stored.
template <typename T> void ConvApply::dense(Run& r, Images<T> m, const Direction& d, size_t i) const {
  const Order& o = d.orders[i];
  float* ordered = r.work + scratch;
  r.ops.conv_gather(conv->weight.values(r.model), o.index.data(), o.index.size(), ordered, r.threads);
  const Ops& on = d.ops(r.ops);
  m.op(on.conv_dense_apply, on.conv_dense_apply_bf16)(d.planes, o.dense, d.passes[i].output, m[planes], ordered,
                                                      start_of(r, bias), m[y] + d.passes[i].offset, r.threads);
}

// Stored weights are of the type of the images: bfloat16 ones are rounded, in any order.
template <typename T> void ConvApply::sparse(Run& r, Images<T> m, const Direction& d, size_t i) const {
  const Order& o = d.orders[i];
  const ConvOutput& out = d.passes[i].output;
  const float *values = conv->weight.values(r.model), *start = start_of(r, bias);
  const auto to = m[y] + d.passes[i].offset;
  if constexpr (m.HALF) {
    const int64_t stored = conv->weight.stored(r.model);
    bf16 *rounded = reinterpret_cast<bf16*>(r.ordered), *ordered = rounded + (stored + 31) / 32 * 32;
    r.ops.narrow(values, rounded, stored, r.threads);
    if (d.transposed) r.ops.conv_pick_bf16(rounded, o.index.data(), o.index.size(), ordered, r.threads);
    d.ops(r.ops).conv_apply_bf16(d.planes, o.sparse, out, m[planes], d.transposed ? ordered : rounded, start, to,
                                 d.dot(r), r.threads);
  } else {
    if (d.transposed) r.ops.conv_gather(values, o.index.data(), o.index.size(), r.ordered, r.threads);
    d.ops(r.ops).conv_apply(d.planes, o.sparse, out, m[planes], d.transposed ? r.ordered : values, start, to,
                            r.threads);
  }
}

void LinearInputGradient::run(Run& r) const {
  const Direction& d = conv->directions[direction];
  const Order& o = d.orders[0];
  const Ops& on = d.ops(r.ops);
  with_images(r, [&](auto m) {
    m.op(on.conv_scatter, on.conv_scatter_bf16)(d.planes, o.sparse, o.block, o.group, m[dy],
                                                conv->weight.values(r.model), m[dx], r.threads);
  });
}

void Winograd::run(Run& r) const {
  const Weight& w = conv->weight;
  const float* values = w.values(r.model);
  const int64_t stored = w.stored(r.model);
  if (stored < w.size()) {
    const OneSegment one(w.size(), stored);
    r.ops.unpack(values, w.words(r.model), one.offsets, one.segments(), r.work + scratch, r.threads);
    values = r.work + scratch;
  }
  const Ops& ops = on ? *on : r.ops;
  with_images(r, [&](auto m) {
    m.op(ops.conv_winograd, ops.conv_winograd_bf16)(images, filter, m[x], values, start_of(r, bias), m[y], r.threads);
  });
}

void WeightGradient::run(Run& r) const {
  const Weight& w = conv->weight;
  if (score) {
    float* dw = r.scores + r.score_starts[w.segment];
    whole(r, dw);
    const OneSegment one(w.size(), w.stored(r.model));
    r.ops.pack(dw, w.words(r.model), one.offsets, one.segments(), w.gradients(r), r.threads);
    return;
  }
  if (kernel == sparse) {
    const Direction& d = conv->directions[direction];
    const Ops& ops = d.ops(r.ops);
    const ConvWeights& order = d.orders[0].sparse;
    const ConvOutput& out = d.passes[0].output;
    with_images(r, [&](auto m) {
      if constexpr (m.HALF)
        ops.conv_gradient_bf16(d.planes, order, out, m[x], m[dy], w.gradients(r), d.dot(r), r.threads);
      else
        ops.conv_gradient(d.planes, order, out, m[x], m[dy], w.gradients(r), r.threads);
    });
    return;
  }
  const int64_t stored = w.stored(r.model);
  if (grow && stored == w.size()) {  // what was dropped grows again
    memcpy(r.growth->words + r.model.starts[w.segment], w.words(r.model), (w.size() + 63) / 64 * sizeof(uint64_t));
    return;
  }
  if (grow) {
    whole(r, r.work + scratch);
    choose(r, r.work + scratch);
    return;
  }
  const bool all = stored == w.size();
  float* dw = all ? w.gradients(r) : r.work + scratch;
  whole(r, dw);
  if (all) return;
  const OneSegment one(w.size(), stored);
  r.ops.pack(dw, w.words(r.model), one.offsets, one.segments(), w.gradients(r), r.threads);
}

void WeightGradient::whole(Run& r, float* dw) const {
  const Weight& w = conv->weight;
  if (kernel == winograd) {
    const Ops& ops = on ? *on : r.ops;
    with_images(r, [&](auto m) {
      m.op(ops.conv_winograd_gradient, ops.conv_winograd_gradient_bf16)(images, w.out, w.in, m[x], m[dy], dw,
                                                                        r.threads);
    });
    return;
  }
  const Direction& d = conv->directions[direction];
  const Order& o = d.orders[0];
  ConvDense taps = o.dense;
  const int64_t fewer = o.block / tiles > 0 ? o.block / tiles : 1;
  taps.block = fewer * w.taps;
  const Ops& ops = d.ops(r.ops);
  if (r.bf16 && d.dot(r)) {
    const Images<bf16> m{r};
    ops.conv_dense_gradient_dot(d.planes, taps, d.passes[0].output, tiles, m[x], m[dy], dw, r.threads);
    return;
  }
  with_images(r, [&](auto m) {
    m.op(ops.conv_dense_gradient, ops.conv_dense_gradient_bf16)(d.planes, taps, d.passes[0].output, tiles, m[x], m[dy],
                                                                dw, r.threads);
  });
}

// Of the entries that the kept pattern does not store, those with the largest |gradient| join it.
void WeightGradient::choose(Run& r, const float* dw) const {
  const Weight& w = conv->weight;
  const int64_t size = w.size(), count = (size + 63) / 64, first = r.model.starts[w.segment];
  if (!finite(dw, size)) {
    if (r.growth->failed < 0) r.growth->failed = w.segment;  // the first that a pass backward meets
    return;
  }
  uint64_t* free = reinterpret_cast<uint64_t*>(r.work + scratch + (size + 15) / 16 * 16);
  uint64_t* chosen = free + count;
  int64_t stored = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t left = size - i * 64;
    free[i] = ~r.growth->kept[first + i] & (left < 64 ? (1ull << left) - 1 : ~0ull);
    stored += __builtin_popcountll(free[i]);
    chosen[i] = 0;
  }
  const OneSegment one(size, stored);
  r.ops.select(dw, free, one.offsets, one.segments(), r.growth->wanted + w.segment, true, true, chosen, r.threads);
  for (int64_t i = 0; i < count; i++) r.growth->words[first + i] |= chosen[i];
}

}  // namespace sparsefl::program
