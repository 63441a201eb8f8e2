// The mailbox: where the CPU and a device meet inside a step. Memory map and ordering argument; host side and NVRTC.
//
// Control words, one to a line of 128 bytes, so that no two writers share a line:
//   abort          the host writes the sequence of a step that it gives up
//   step_done      the device writes a step's sequence when its logits are in host memory
//   failure        the device: sequence << 16 | job + 1, when its wait for that job's done word ran out
//   doorbell(j)    the device: sequence << 24 | number of missed pairs of job j
//   done(j)        the host: the sequence, when the missed rows of job j are in host memory
//   timing(j)      the device: nanoseconds from its first payload word of job j to the last row read; 0: none yet
// Sequences start at 1 and grow by one with each step; words only grow (timing apart), so nothing is reset and a late reader
// is never misled. Jobs are the plan's EXPERTS ops in order.
//
// Payload: the host's activation arena, at the plan's own offsets. For job j = op o with missed pairs the device writes the
// rows of o.in[0] and o.in[1], the host writes the missed pairs' rows of o.out[0], the device reads those. The selection of
// every job, missed or not, goes to routing(j) as well: it outlives the job, for statistics.
//
// Ordering: the writer stores its payload, then its word with release at system scope; the reader loads the word with
// acquire, then reads the payload. Payload of job j + 1 is written after the device has taken done(j), which the host wrote
// after it had read the payload of job j: one payload area is enough. A job without misses writes no payload, so a host
// that is late by some jobs finds its own payload untouched.
#pragma once
#ifndef __CUDACC_RTC__
#include <cstdint>
#endif

namespace strata {

constexpr int64_t kMailboxLine = 128;
constexpr int32_t kMailboxAbort = 0, kMailboxStepDone = 1, kMailboxFailure = 2, kMailboxFirstJob = 3;
constexpr int32_t kDoorbellShift = 24;  // below: missed pairs
constexpr int32_t kFailureShift = 16;   // below: job + 1

static constexpr int64_t mailbox_line(int32_t word) { return word * kMailboxLine; }
static constexpr int32_t mailbox_doorbell(int32_t job) { return kMailboxFirstJob + 3 * job; }
static constexpr int32_t mailbox_done(int32_t job) { return kMailboxFirstJob + 3 * job + 1; }
static constexpr int32_t mailbox_timing(int32_t job) { return kMailboxFirstJob + 3 * job + 2; }
static constexpr int64_t mailbox_control_bytes(int32_t n_jobs) { return (kMailboxFirstJob + 3 * n_jobs) * kMailboxLine; }

}  // namespace strata
