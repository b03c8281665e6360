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

void ToPlanes::run(Run& r) const { r.ops.conv_planes(planes, r.work + x, r.work + to, r.threads); }

void ConvApply::run(Run& r) const {
  const Direction& d = conv->directions[direction];
  const float *values = conv->weight.values(r.model), *start = start_of(r, bias);
  for (size_t i = 0; i < d.passes.size(); i++) {
    const Order& o = d.orders[i];
    const float* weights = values;
    if (d.dense || d.transposed) {
      float* ordered = d.dense ? r.work + scratch : r.ordered;
      r.ops.conv_gather(values, o.index.data(), o.index.size(), ordered, r.threads);
      weights = ordered;
    }
    float* to = r.work + y + d.passes[i].offset;
    const Ops& on = d.ops(r.ops);
    if (d.dense)
      on.conv_dense_apply(d.planes, o.dense, d.passes[i].output, r.work + planes, weights, start, to, r.threads);
    else
      on.conv_apply(d.planes, o.sparse, d.passes[i].output, r.work + planes, weights, start, to, r.threads);
  }
}

void LinearInputGradient::run(Run& r) const {
  const Direction& d = conv->directions[direction];
  const Order& o = d.orders[0];
  d.ops(r.ops).conv_scatter(d.planes, o.sparse, o.block, o.group, r.work + dy, conv->weight.values(r.model),
                            r.work + dx, r.threads);
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
  (on ? *on : r.ops).conv_winograd(images, filter, r.work + x, values, start_of(r, bias), r.work + y, r.threads);
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
    d.ops(r.ops).conv_gradient(d.planes, d.orders[0].sparse, d.passes[0].output, r.work + x, r.work + dy,
                               w.gradients(r), r.threads);
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
    (on ? *on : r.ops).conv_winograd_gradient(images, w.out, w.in, r.work + x, r.work + dy, dw, r.threads);
    return;
  }
  const Direction& d = conv->directions[direction];
  const Order& o = d.orders[0];
  ConvDense taps = o.dense;
  const int64_t fewer = o.block / tiles > 0 ? o.block / tiles : 1;
  taps.block = fewer * w.taps;
  d.ops(r.ops).conv_dense_gradient(d.planes, taps, d.passes[0].output, tiles, r.work + x, r.work + dy, dw, r.threads);
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
