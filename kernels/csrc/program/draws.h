// Named random streams, number by number as fl/rng.py's: numpy's Philox generator, its bounded integers and its
// permutation. Tested against numpy.
#pragma once
#include <stdint.h>

#include <vector>

namespace sparsefl::program {

// The key of a purpose (blake2b, made in Python).
struct StreamKey {
  uint64_t low, high;
};

class Stream {
 public:
  Stream(StreamKey key, uint64_t t, uint64_t k) : key_(key), counter_{0, 0, t, k} {}

  uint64_t next();
  // 0 to `most`, each as likely: as numpy draws integers (Lemire's way), and as it shuffles (by a mask).
  uint32_t up_to(uint32_t most);
  uint32_t place_up_to(uint32_t most);
  double uniform() { return double(next() >> 11) * (1.0 / 9007199254740992.0); }

 private:
  uint32_t half();  // the lower half of a number, then its upper one
  void refill();

  StreamKey key_;
  uint64_t counter_[4], block_[4];
  int used_ = 4;  // of block_
  bool has_half_ = false;
  uint32_t half_ = 0;
};

// Samples of epochs, drawn as fl/data/batches.py draws them: a permutation per epoch, and where each is cropped and
// whether it is mirrored.
struct Drawn {
  std::vector<int64_t> order, rows, columns;
  std::vector<uint8_t> mirrored;

  // `samples`: `count` indices of 4 or (wide) 8 bytes. Corners are drawn from 0 to `corners`.
  void draw(Stream stream, const void* samples, bool wide, int64_t count, int64_t epochs, uint32_t corners);
};

}  // namespace sparsefl::program
