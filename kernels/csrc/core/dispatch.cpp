#define SPARSE_ISA baseline
#include "core/dispatch.h"

#include <atomic>
#include <string>
#include <utility>

namespace baseline {
extern const sparsefl::Ops ops;
}
#if defined(SPARSE_X86)
namespace avx2 {
extern const sparsefl::Ops ops;
}
namespace avx512 {
extern const sparsefl::Ops ops;
}
#endif

namespace sparsefl {
namespace {

const Ops* find(const std::string& name) {
  for (const Ops* ops : available())
    if (name == ops->name) return ops;
  std::string known;
  for (const Ops* ops : available()) known += known.empty() ? ops->name : std::string(", ") + ops->name;
  throw std::invalid_argument("expected an instruction set out of " + known + ", got '" + name + "'");
}

std::atomic<const Ops*>& slot() {
  static std::atomic<const Ops*> chosen{available().back()};
  return chosen;
}

thread_local const Ops* here = nullptr;

}  // namespace

std::vector<const Ops*> available() {
  std::vector<const Ops*> found = {&baseline::ops};
#if defined(SPARSE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt");
#if defined(SPARSE_EMULATE_AVX512)
  const bool avx512 = avx2;
#else
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  if (avx2) found.push_back(&avx2::ops);
  if (avx512) found.push_back(&avx512::ops);
#endif
  return found;
}

const Ops& ops() { return here ? *here : *slot().load(std::memory_order_relaxed); }

const Ops* table(const std::string& name) { return name.empty() ? nullptr : find(name); }

void choose(const std::string& name) { slot().store(find(name), std::memory_order_relaxed); }

const Ops* choose_here(const Ops* table) { return std::exchange(here, table); }

}  // namespace sparsefl
