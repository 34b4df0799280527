// A team of threads that share loops.
//
// Between two decoder calls Python needs about 100 us. Waking a sleeping thread takes as long, so
// waiting threads spin. While another program needs their processor, they soon sleep: a thread
// that spins until its time slice ends must wait for the next one. OpenMP's threads cannot adapt.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {  // each library has its own team: it is compiled from one file

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Spin time of waiting threads: LONG, or SHORT for a time after another program had a processor.
class Patience {
  public:
    static constexpr microseconds LONG{1000}, SHORT{30}, INTERRUPTION{500}, CAUTION{50'000};

    microseconds at(Clock::time_point now) const {
        return now.time_since_epoch().count() < cautious_until ? SHORT : LONG;
    }
    // A waiting thread ran at `last` and then at `now`.
    void observe(Clock::time_point last, Clock::time_point now) {
        if (now - last > INTERRUPTION) cautious_until = (now + CAUTION).time_since_epoch().count();
    }

  private:
    std::atomic<Clock::rep> cautious_until{0};
};

// A counter that threads wait for.
class Signal {
  public:
    uint32_t count() const { return number.load(std::memory_order_acquire); }

    void raise() {
        number.fetch_add(1);
        if (sleepers.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    }

    // Waits until the count is not `before`; calls `pause` repeatedly while it spins.
    template <class Pause>
    void wait(uint32_t before, Patience& patience, const Pause& pause) {
        const auto begin = Clock::now();
        for (auto last = begin; count() == before;) {
            pause();
            const auto now = Clock::now();
            patience.observe(last, now);
            if (now - begin > patience.at(now)) return sleep(before);
            last = now;
        }
    }

  private:
    void sleep(uint32_t before) {
        sleepers.fetch_add(1);
        while (count() == before) futex(FUTEX_WAIT_PRIVATE, before);
        sleepers.fetch_sub(1);
    }

    void futex(int operation, uint32_t value) {
        syscall(SYS_futex, &number, operation, value, nullptr, nullptr, 0);
    }

    std::atomic<uint32_t> number{0}, sleepers{0};
};

// The calling thread and `size - 1` others.
class Team {
  public:
    const long size;

    explicit Team(long size) : size(size) {
        for (long index = 1; index < size; ++index)
            others.emplace_back([this, index] { serve(index); });
    }
    ~Team() {
        work = nullptr;
        start.raise();
        for (auto& thread : others) thread.join();
    }

    // Calls `work(argument)` in all threads.
    void run(void (*work)(const void*), const void* argument) {
        this->work = work;
        this->argument = argument;
        start.raise();
        take_part(0);
    }

    // Waits for all threads.
    void barrier() {
        const uint32_t before = passed.count();
        if (arrived.fetch_add(1) + 1 < size) return passed.wait(before, patience, relax);
        arrived = 0;
        next = 0;
        passed.raise();
    }

    // Returns the next index of a loop.
    long take() { return next.fetch_add(1); }

    // The calling thread's place; no team: it works alone.
    struct Place {
        Team* team;
        long index;
    };
    static thread_local Place place;

  private:
    void serve(long index) {
        for (uint32_t before = 0;; ++before) {
            start.wait(before, patience, sched_yield);  // torch's threads may need the processor
            if (work == nullptr) return;
            take_part(index);
        }
    }

    static void relax() {
        for (int times = 0; times < 16; ++times) _mm_pause();
    }

    void take_part(long index) {
        place = {this, index};
        work(argument);
        barrier();
        place = {};
    }

    void (*work)(const void*) = nullptr;
    const void* argument = nullptr;
    Signal start, passed;
    Patience patience;
    std::atomic<long> arrived{0}, next{0};
    std::vector<std::thread> others;
};

thread_local Team::Place Team::place;

// The process's team. It is never destroyed: its threads may wait when the process ends.
struct SharedTeam {
    std::mutex in_use;
    std::unique_ptr<Team> team;

    static SharedTeam*& get() {
        static SharedTeam* shared = (pthread_atfork(nullptr, nullptr, replace), new SharedTeam);
        return shared;
    }
    static void replace() { get() = new SharedTeam; }  // a child process has none of the threads
};

// Calls `work()` in `threads` threads; only in this one while another call uses the team.
template <class Work>
void parallel(long threads, const Work& work) {
    SharedTeam& shared = *SharedTeam::get();
    std::unique_lock<std::mutex> lock(shared.in_use, std::defer_lock);
    if (threads <= 1 || !lock.try_lock()) return work();
    if (shared.team == nullptr || shared.team->size != threads) {
        shared.team.reset();
        shared.team = std::make_unique<Team>(threads);
    }
    shared.team->run([](const void* work) { (*static_cast<const Work*>(work))(); }, &work);
}

// Calls `visit(index)` for indices below `count`: each thread for consecutive ones. Returns when
// all threads have finished.
template <class Visit>
void share(long count, const Visit& visit) {
    const auto [team, index] = Team::place;
    const long size = team == nullptr ? 1 : team->size;
    for (long at = count * index / size; at < count * (index + 1) / size; ++at) visit(at);
    if (team != nullptr) team->barrier();
}

// As `share`, for visits that take long or unequal times: each thread takes the next index.
template <class Visit>
void share_next(long count, const Visit& visit) {
    Team* team = Team::place.team;
    if (team == nullptr) return share(count, visit);
    for (long at = team->take(); at < count; at = team->take()) visit(at);
    team->barrier();
}

template <class Visit>
void parallel_share(long threads, long count, const Visit& visit) {
    parallel(threads, [&] { share(count, visit); });
}

}  // namespace
