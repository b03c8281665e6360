#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <map>
#include <mutex>

namespace sparsefl {
namespace {

constexpr int64_t LINE = 64, PAGE = 4096, HUGE = 2 << 20;

int64_t whole(int64_t bytes) {
  const int64_t unit = bytes < PAGE ? LINE : bytes < HUGE ? PAGE : 16 * PAGE;
  return bytes < 1 ? LINE : (bytes + unit - 1) / unit * unit;
}

#if defined(__linux__)
// Large buffers are mappings of their own: what is released is gone, and no small block keeps it from going.
void* fresh(int64_t size) {
  if (size < HUGE) return aligned_alloc(size < PAGE ? LINE : PAGE, size);
  char* all = static_cast<char*>(
      mmap(nullptr, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (all == MAP_FAILED) return nullptr;
  const int64_t before = (HUGE - reinterpret_cast<uintptr_t>(all) % HUGE) % HUGE;
  if (before) munmap(all, before);
  munmap(all + before + size, HUGE - before);
#if defined(MADV_HUGEPAGE)
  madvise(all + before, size / HUGE * HUGE, MADV_HUGEPAGE);  // a wish: without it the buffer is only slower
#endif
  return all + before;
}

void release(void* p, int64_t size) {
  if (size < HUGE)
    free(p);
  else
    munmap(p, size);
}
#else
void* fresh(int64_t size) { return aligned_alloc(size < PAGE ? LINE : PAGE, size); }
void release(void* p, int64_t) { free(p); }
#endif

// Idle buffers by size. What is in use and idle together stays within an eighth of the most that was ever in use, so a
// change of shapes does not pile up buffers of the old ones.
class Pool {
 public:
  void* take(int64_t bytes) {
    const int64_t size = whole(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    void* p = reuse(size);
    if (!p) {
      const int64_t most = peak_ > taken_ + size ? peak_ : taken_ + size;
      shrink(most + most / 8 - taken_ - size);
      p = fresh(size);
      if (!p) {
        shrink(0);
        p = fresh(size);
      }
      if (!p) return nullptr;
      sizes_[p] = size;
    }
    taken_ += sizes_[p];
    peak_ = taken_ > peak_ ? taken_ : peak_;
    return p;
  }

  void give(void* p) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t size = sizes_[p];
    taken_ -= size;
    kept_ += size;
    idle_.emplace(size, p);
  }

  void trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    shrink(0);
    peak_ = taken_;
  }

  int64_t taken() { return std::lock_guard<std::mutex>(mutex_), taken_; }
  int64_t idle() { return std::lock_guard<std::mutex>(mutex_), kept_; }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void* reuse(int64_t size) {
    const auto found = idle_.lower_bound(size);
    if (found == idle_.end() || found->first > size + size / 8) return nullptr;
    void* p = found->second;
    kept_ -= found->first;
    idle_.erase(found);
    return p;
  }

  void shrink(int64_t limit) {  // the largest first
    while (kept_ > limit && !idle_.empty()) {
      const auto last = --idle_.end();
      kept_ -= last->first;
      sizes_.erase(last->second);
      release(last->second, last->first);
      idle_.erase(last);
    }
  }

  std::mutex mutex_;
  std::multimap<int64_t, void*> idle_;
  std::map<void*, int64_t> sizes_;
  int64_t taken_ = 0, kept_ = 0, peak_ = 0;
};

Pool& pool() {
  static Pool* const all = [] {
    Pool* p = new Pool;  // never destroyed: tensors may outlive this module's static objects
    pthread_atfork([] { pool().lock(); }, [] { pool().unlock(); }, [] { pool().unlock(); });
    return p;
  }();
  return *all;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer must see where every buffer ends, and that nobody uses it afterwards.
bool pooled() { return false; }
void* take(int64_t bytes) {
  void* p = nullptr;
  return posix_memalign(&p, LINE, bytes) ? nullptr : p;
}
void give(void* p) { free(p); }
#else
bool pooled() { return true; }
void* take(int64_t bytes) { return pool().take(bytes); }
void give(void* p) { pool().give(p); }
#endif
int64_t bytes_taken() { return pool().taken(); }
int64_t bytes_idle() { return pool().idle(); }
void trim() { pool().trim(); }

}  // namespace sparsefl
