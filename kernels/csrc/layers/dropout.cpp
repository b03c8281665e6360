// Dropout without a state: which entries stay is a function of (seed, step, element, sample) alone, so that neither the
// size of the batch nor threads nor the instruction set change it. kernels/dropout/_reference.py is the specification.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/simd_bf16.h"

namespace SPARSE_ISA {
namespace {

typedef uint32_t vu __attribute__((vector_size(4 * W)));

constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;

// The last step of splitmix64.
inline uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

// 32 random bits of each lane: a hash of its sample, with one half of the element's key before and one after a product.
inline vu bits(vu sample, uint64_t key) {
  vu u = sample * uint32_t(GOLDEN >> 32) ^ uint32_t(key);
  u = (u ^ u >> 16) * 0x21f0aaadu;
  u ^= uint32_t(key >> 32);
  u = (u ^ u >> 15) * 0x735a2d97u;
  return u ^ u >> 15;
}

template <typename T> void drop(const Dropout& d, int64_t elements, int64_t batch, const T* x, T* y, int threads) {
  constexpr int64_t CHUNK = 1 << 14;  // entries a thread takes at a time, at least
  const uint64_t call = mix(mix(d.seed + GOLDEN) + d.step * GOLDEN);
  const vi scale = as_int(splat(float(1 / (1 - d.p))));
  const uint32_t bound = uint32_t(d.p * 4294967296.0);
  const int64_t few = batch < CHUNK ? CHUNK / (batch < 1 ? 1 : batch) : 1;
  parallel_for((elements + few - 1) / few, threads, [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * few < elements ? (chunk + 1) * few : elements;
    for (int64_t e = chunk * few; e < end; e++) {
      const uint64_t key = mix(call + uint64_t(e) * GOLDEN);
      const T *from = x + e * batch, *stop = from + batch;
      T* to = y + e * batch;
      vu sample = reinterpret_cast<vu>(iota());
      for (int64_t n = 0; n < batch; n += W, sample += W) {
        const vi kept = reinterpret_cast<vi>(bits(sample, key) >= bound);
        store_until(to + n, load_until(from + n, stop) * as_float(scale & kept), to + batch);
      }
    }
  });
}

}  // namespace

void dropout(Dropout d, int64_t elements, int64_t batch, const float* x, float* y, int threads) {
  drop(d, elements, batch, x, y, threads);
}

void dropout_bf16(Dropout d, int64_t elements, int64_t batch, const bf16* x, bf16* y, int threads) {
  drop(d, elements, batch, x, y, threads);
}

}  // namespace SPARSE_ISA
