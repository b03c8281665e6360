// XXH64 (Yann Collet): a 64-bit checksum of bytes at the speed of memory, without tables or special instructions.
// Written after the specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#include "core/ops.h"
#include "core/simd.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read in memory order");

namespace SPARSE_ISA {
namespace {

constexpr uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9, P4 = 0x85EBCA77C2B2AE63,
                   P5 = 0x27D4EB2F165667C5;

uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }
uint64_t mix(uint64_t sum, uint64_t x) { return rotate(sum + x * P2, 31) * P1; }
uint64_t merge(uint64_t hash, uint64_t sum) { return (hash ^ mix(0, sum)) * P1 + P4; }

template <typename T> T read(const uint8_t* p) {
  T x;
  memcpy(&x, p, sizeof x);
  return x;
}

}  // namespace

uint64_t checksum(const uint8_t* p, int64_t n, uint64_t seed) {
  const uint8_t* const end = p + n;
  uint64_t hash = seed + P5;
  if (n >= 32) {
    uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
    for (; end - p >= 32; p += 32) {
      a = mix(a, read<uint64_t>(p));
      b = mix(b, read<uint64_t>(p + 8));
      c = mix(c, read<uint64_t>(p + 16));
      d = mix(d, read<uint64_t>(p + 24));
    }
    hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    hash = merge(merge(merge(merge(hash, a), b), c), d);
  }
  hash += uint64_t(n);
  for (; end - p >= 8; p += 8) hash = rotate(hash ^ mix(0, read<uint64_t>(p)), 27) * P1 + P4;
  for (; end - p >= 4; p += 4) hash = rotate(hash ^ read<uint32_t>(p) * P1, 23) * P2 + P3;
  for (; p < end; p++) hash = rotate(hash ^ *p * P5, 11) * P1;
  hash = (hash ^ hash >> 33) * P2;
  hash = (hash ^ hash >> 29) * P3;
  return hash ^ hash >> 32;
}

}  // namespace SPARSE_ISA
