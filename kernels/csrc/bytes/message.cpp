// A whole message with exact numbers (fp32) and a mask of its own, in one call: the choices, the sections and the
// header of sparse_engine/wire, whose parts it is tested against byte by byte.
#include "bytes/message.h"

#include <math.h>

#include "core/ops.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t HEADER = 64;
enum : uint8_t { BITMAP, ENTROPY };  // mask codecs
constexpr uint8_t PACKED = 128;      // of values

int64_t bytes_of(int64_t bits) { return (bits + 7) / 8; }

bool finite(const float* x, int64_t n) {
  vf sums = {};  // of x - x: 0, or NaN
  for (int64_t i = 0; i < n; i += W) {
    const vf v = load_until(x + i, x + n);
    sums += v - v;
  }
  for (int k = 0; k < W; k++)
    if (sums[k] != 0) return false;
  return true;
}

// n H(ones / n), in bits.
double information(double ones, double n) {
  if (!(0 < ones && ones < n)) return 0;
  return -(ones * log2(ones / n) + (n - ones) * log2((n - ones) / n));
}

struct Mask {
  const Message& m;
  bool partly(int64_t l) const { return 0 < m.stored[l] && m.stored[l] < bits(l); }
  int64_t bits(int64_t l) const { return m.segments.dense[l + 1] - m.segments.dense[l]; }

  int64_t bitmap_size() const {
    int64_t size = 0;
    for (int64_t l = 0; l < m.segments.count; l++) size += partly(l) ? bytes_of(bits(l)) : 0;
    return (size + 3) / 4 * 4;
  }
  int64_t most_entropy() const {
    int64_t raw = 0;
    for (int64_t l = 0; l < m.segments.count; l++) raw += bytes_of(bits(l));
    return raw + raw / 1024 + 16 * m.segments.count + 64;
  }
  double entropy() const {
    double sum = 0;
    for (int64_t l = 0; l < m.segments.count; l++) sum += information(double(m.stored[l]), double(bits(l)));
    return sum / 8;
  }

  // After the counts. Returns the size; -1: no room.
  int64_t write(uint8_t* out, int64_t capacity, uint8_t& codec) const {
    const int64_t plain = bitmap_size();
    const double coded = 32 + entropy(), counts = 4.0 * m.segments.count;
    const double near = 1.02 * (counts + (plain < coded ? plain : coded)) + 64;
    int64_t size = -1;
    if (counts + coded <= near) {
      size = mask_encode(m.words, nullptr, m.segments, nullptr, m.stored, out, most_entropy());
      if (size < 0) return -1;
    }
    if (size >= 0 && (counts + plain > near || size < plain)) {
      codec = ENTROPY;
      return size;
    }
    if (plain > capacity) return -1;
    codec = BITMAP;
    int64_t at = 0;
    for (int64_t l = 0; l < m.segments.count; l++)
      if (partly(l)) {
        memcpy(out + at, m.words + m.segments.starts[l], bytes_of(bits(l)));
        at += bytes_of(bits(l));
      }
    memset(out + at, 0, plain - at);
    return plain;
  }
};

template <typename T> uint8_t* put(uint8_t* to, T value) {
  memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

}  // namespace

// Bytes that always suffice.
int64_t message_room(Message m) {
  const Mask mask{m};
  const int64_t code = mask.most_entropy(), bits = mask.bitmap_size();
  return HEADER + 4 * m.segments.count + (code > bits ? code : bits) + 4 * (m.num_weights + m.num_vectors) +
         8 * m.num_integers;
}

// The size of the message; -1: a number is not finite. out: message_room bytes.
int64_t message_encode(Message m, uint8_t* out) {
  if (!finite(m.weights, m.num_weights) || !finite(m.vectors, m.num_vectors)) return -1;
  const int64_t room = message_room(m);
  uint8_t* at = out + HEADER;
  for (int64_t l = 0; l < m.segments.count; l++) at = put(at, uint32_t(m.stored[l]));
  uint8_t codec = BITMAP;
  const int64_t code = Mask{m}.write(at, out + room - at, codec);
  if (code < 0) return -1;
  uint8_t* const values = at + code;
  const int64_t plain = 4 * m.num_weights;
  int64_t size =
      plain ? number_encode(reinterpret_cast<const uint8_t*>(m.weights), m.num_weights, 4, values, plain - 1) : -1;
  const bool packed = size >= 0;
  if (!packed) {
    size = plain;
    if (plain) memcpy(values, m.weights, plain);
  }
  uint8_t* const rest = values + size;
  const int64_t floats = 4 * m.num_vectors, integers = 8 * m.num_integers;
  if (floats) memcpy(rest, m.vectors, floats);
  if (integers) memcpy(rest + floats, m.integers, integers);

  memcpy(out, "SPFL\1\0", 6);
  out[6] = codec, out[7] = packed ? PACKED : 0;
  uint8_t* field = put(put(out + 16, m.fingerprint), uint64_t(0));
  field = put(put(field, m.sender), m.round);
  const int64_t sizes[3] = {values - out - HEADER, size, floats + integers};
  memcpy(field, sizes, sizeof sizes);
  uint64_t sum;
  memcpy(&sum, out, 8);
  sum = checksum(out + 16, HEADER - 16, sum);
  const uint8_t* section = out + HEADER;
  for (int64_t n : sizes) {
    sum = checksum(section, n, sum);
    section += n;
  }
  put(out + 8, sum);
  return rest + floats + integers - out;
}

}  // namespace SPARSE_ISA
