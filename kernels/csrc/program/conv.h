// Convolutions of a program. A Conv owns the orders in which its stored entries are met: they are made from the bitmap
// when a mask comes, and kept while it stays.
#pragma once
#include <memory>
#include <vector>

#include "program/model.h"

namespace sparsefl::program {

// The weight [out, in, taps]: a segment of the packed values, or in `rest`: whole, or the blocks of its groups.
struct Weight {
  int64_t segment;  // -1: in rest
  int64_t at;       // in rest
  int64_t out, in, taps;
  std::vector<uint64_t> blocks;  // the bitmap of a grouped weight; empty: there are no groups
  int64_t entries;               // of `rest`

  int64_t size() const { return out * in * taps; }
  bool packed() const { return segment >= 0; }
  int64_t stored(const Arenas& m) const { return packed() ? m.offsets[segment + 1] - m.offsets[segment] : entries; }
  const uint64_t* words(const Arenas& m) const {
    if (packed()) return m.words + m.starts[segment];
    return blocks.empty() ? nullptr : blocks.data();
  }
  float* values(const Arenas& m) const { return packed() ? m.values + m.offsets[segment] : m.rest + at; }
  float* gradients(const Run& r) const { return packed() ? r.dvalues + r.model.offsets[segment] : r.drest + at; }
};

// A pass over planes as geometry has it: no mask yet.
struct Pass {
  ConvOutput output;
  int64_t offset;             // of the output, in entries
  std::vector<int64_t> taps;  // bytes from an output position to each tap; -1: not in this pass
  int64_t block;              // channels whose part under a tile fits into L1
  int64_t few;                // weights of a row and block below which blocks double
  bool often;                 // ... again and again, until rows have so many
};

// The weights of a pass in the order in which it meets them.
struct Order {
  ConvWeights sparse;
  ConvDense dense;
  int64_t block, group;
  std::vector<int32_t> starts, order, at, index;
  std::vector<uint32_t> offsets;
};

// A direction through planes: forward, or the input gradient with one pass per phase of its stride.
struct Direction {
  bool transposed;
  bool dense;        // weights of every tap, zeros where nothing is stored
  bool weights;      // false: only offsets of taps, for the gradient of a whole weight
  int64_t itemsize;  // bytes of an entry of the planes
  bool pairs;        // dense, on planes of pairs of channels: a bfloat16 of each
  const Ops* on;     // the instruction set that its planes and orders are for; null: the run's
  ConvPlanes planes;
  std::vector<Pass> passes;
  std::vector<Order> orders;  // one per pass, of the mask that `adopt` took

  const Ops& ops(const Ops& otherwise) const { return on ? *on : otherwise; }
  // The instruction for products of bfloat16 pairs is the run's instruction set's, and no other's.
  bool dot(const Run& r) const { return r.dot && !on; }
};

class Conv {
 public:
  Conv(Weight weight, std::vector<Direction> directions) : weight(weight), directions(std::move(directions)) {}

  // Makes the orders of the model's mask, unless they are there.
  void adopt(const Ops& ops, const Arenas& model);

  const Weight weight;
  std::vector<Direction> directions;

 private:
  void make(const Ops& ops, Direction& d, const uint64_t* words, int64_t stored);
  void list_entries(const Ops& ops, const Direction& d, const uint64_t* words, int64_t stored);
  void make_dense(const Direction& d, const Pass& pass, const uint64_t* words, int64_t used, Order& o) const;
  void make_sparse(const Ops& ops, const Direction& d, const Pass& pass, Order& o);

  std::vector<uint64_t> words_;
  const Ops* made_on_ = nullptr;
  std::vector<int32_t> pointers_, indices_, positions_;  // of CSR or its transpose, while orders are made
};

}  // namespace sparsefl::program
