#define SPARSE_ISA baseline
#include "core/parallel.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

namespace sparsefl {
namespace {

constexpr int SPINS = 4000;  // some 20 us: the next kernel of a layer often follows at once

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Chunks that whoever is free takes one by one.
struct Job {
  int64_t chunks;
  void (*body)(void*, int64_t);
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error{};  // the first; read when nobody drains any more

  void drain() noexcept {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) body(context, i);
    } catch (...) {
      next.store(chunks, std::memory_order_relaxed);
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
};

// One job at a time. A helper joins a job that is still open; the caller closes it when no chunk is left to take and
// waits for those who joined, never for one that is still asleep.
class Pool {
 public:
  void run(Job& job, int helpers) noexcept {
    start(helpers);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = &job, helpers_ = helpers;
      count_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.drain();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = nullptr;
    }
    while (joined_.load(std::memory_order_acquire) > 0) relax();
  }

 private:
  // Fewer where the system has no room for more: no result depends on their number.
  void start(int helpers) noexcept {
    try {
      for (; started_ < helpers; started_++) std::thread(&Pool::work, this, started_, count_.load()).detach();
    } catch (const std::exception&) {
    }
  }

  void work(int id, uint64_t seen) noexcept {
    for (;;) {
      for (int spin = 0; spin < SPINS && count_.load(std::memory_order_acquire) == seen; spin++) relax();
      Job* job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return count_.load(std::memory_order_relaxed) != seen; });
        seen = count_.load(std::memory_order_relaxed);
        if (!open_ || id >= helpers_) continue;
        job = open_;
        joined_.fetch_add(1, std::memory_order_relaxed);
      }
      job->drain();
      joined_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> count_{0};  // of jobs
  std::atomic<int> joined_{0};
  Job* open_ = nullptr;
  int helpers_ = 0, started_ = 0;
};

// torch's own threads, if they are OpenMP's: its helpers spin for some milliseconds after each of torch's operations,
// and threads beside them would have to share their cores.
struct Team {
  void (*run)(void (*body)(void*), void* context, unsigned threads, unsigned flags) = nullptr;
  int (*size)() = nullptr;

  // Only as large as torch's: OpenMP ends threads that a smaller team leaves over and starts them again for the next.
  bool serves(int threads) const { return run && size && size() == threads; }
};

Team torch_team() {  // from the library that torch itself is bound to
  Team team;
  if (void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) {
    const auto find = [&](const char* name) {
      void* symbol = dlsym(RTLD_DEFAULT, name);
      return symbol ? symbol : dlsym(torch, name);
    };
    team.run = reinterpret_cast<decltype(team.run)>(find("GOMP_parallel"));
    team.size = reinterpret_cast<decltype(team.size)>(find("omp_get_max_threads"));
  }
  return team;
}

// Is there room for the stacks of a team? OpenMP ends the process when it cannot start a thread. It keeps those of each
// thread that calls it, so the question is asked before a thread's first team of a size.
class Room {
 public:
  Room() { known_ = pthread_key_create(&last_, nullptr) == 0; }

  bool enough(int threads) const {
    if (known_ && reinterpret_cast<intptr_t>(pthread_getspecific(last_)) == threads) return true;
    const size_t bytes = size_t(threads) * (stack_size() + MORE);
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    munmap(p, bytes);
    if (known_) pthread_setspecific(last_, reinterpret_cast<void*>(intptr_t(threads)));
    return true;
  }

 private:
  static constexpr size_t MORE = 1 << 20;  // of a thread, beside its stack

  static size_t stack_size() {
    size_t size = 8 << 20;
    pthread_attr_t usual;
    if (pthread_attr_init(&usual) == 0) {
      pthread_attr_getstacksize(&usual, &size);
      pthread_attr_destroy(&usual);
    }
    return size;
  }

  pthread_key_t last_;  // the size of the thread's last team
  bool known_;
};

struct Threads {
  Team team;
  Room room;
  Pool pool;
  std::mutex in_use;

  void run(Job& job, int helpers, int threads) noexcept {
    if (!team.serves(threads))
      pool.run(job, helpers);
    else if (room.enough(threads))
      team.run([](void* x) { static_cast<Job*>(x)->drain(); }, &job, unsigned(threads), 0);
    else
      job.drain();
  }
};

// Never destroyed: the threads may outlive static destructors. A forked child has neither torch's threads, whose
// library would wait for them for ever, nor those of the pool: it starts a pool of its own, in the same place.
alignas(Threads) unsigned char place[sizeof(Threads)];
Threads* all = nullptr;
bool forked = false;
std::once_flag once;
const int watching = pthread_atfork(nullptr, nullptr, [] {
  forked = true;
  if (all) all = new (place) Threads;
});

Threads& the_threads() {
  std::call_once(once, [] {
    all = new (place) Threads;
    if (!forked && watching == 0) all->team = torch_team();
  });
  return *all;
}

}  // namespace

void run_chunks(int64_t chunks, int threads, void (*body)(void*, int64_t), void* context) {
  Job job{chunks, body, context};
  const int helpers = int((threads < chunks ? threads : chunks) - 1);
  std::unique_lock<std::mutex> lock;
  if (helpers > 0) lock = std::unique_lock<std::mutex>(the_threads().in_use, std::try_to_lock);
  if (lock.owns_lock())
    the_threads().run(job, helpers, threads);
  else
    job.drain();
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace sparsefl
