// The slot table and the mailbox's memory map on a small plan: classes, refusals, all-or-none commits, disjoint areas.
#include <cstdio>
#include <cstdlib>

#include "experts/slots.h"
#include "mailbox/host.h"

using namespace strata;

static void expect(bool ok, const char* what) {
  if (ok) return;
  std::printf("FAILED: %s\n", what);
  std::exit(1);
}

int main() {
  Plan plan;
  plan.n_batch = 3;
  plan.activations_bytes = 5000;
  expect(plan.expert_sets.resize(3) && plan.ops.resize(4), "memory");
  const int64_t bytes[3] = {128, 192, 128};
  for (int32_t s = 0; s < 3; ++s) {
    plan.expert_sets[s].n_expert = 4 + s;
    plan.expert_sets[s].n_used = 2;
    plan.expert_sets[s].slot_bytes = bytes[s];
    plan.ops[s + 1].kind = STRATA_OP_EXPERTS;
    plan.ops[s + 1].i[STRATA_EXPERTS_I_SET] = s;
  }
  Error error;
  const int32_t classes[3] = {0, 1, 0}, mixed[3] = {0, 0, 0}, n_slots[2] = {2, 1};
  SlotTable refused, table;
  expect(refused.open(plan, 2, mixed, n_slots, error) == STRATA_E_ARGUMENT, "two sizes in one class are refused");
  error.clear();
  expect(table.open(plan, 2, classes, n_slots, error) == STRATA_OK, "open");
  expect(table.bytes() == 2 * 128 + 192 && table.n_slots() == 3 && table.width() == 6, "sizes");
  expect(table.offset(1) == 128 && table.offset(2) == 256, "offsets");

  const SlotEntry first[2] = {{0, 3, 0}, {2, 5, 1}};
  expect(table.commit(first, 2, error) == STRATA_OK && table.slot(0, 3) == 0 && table.slot(2, 5) == 1, "commit");
  expect(table.check_copy(0, 1, 0, error) == STRATA_E_STATE, "a slot in use is not written");
  error.clear();
  expect(table.check(0, 0, 2, error) == STRATA_E_ARGUMENT, "a slot of another class is refused");
  error.clear();
  expect(table.check(2, 6, 0, error) == STRATA_E_ARGUMENT, "no such expert");
  error.clear();
  const SlotEntry twice[2] = {{0, 1, 1}, {0, 3, -1}};  // slot 1 still serves expert 5 of set 2
  expect(table.commit(twice, 2, error) == STRATA_E_STATE, "one slot for two experts is refused");
  error.clear();
  expect(table.slot(0, 3) == 0 && table.slot(0, 1) == -1, "a refused commit changes nothing");
  expect(table.check_copy(0, 1, 0, error) == STRATA_E_STATE, "nor who holds a slot");
  error.clear();
  const SlotEntry swap[2] = {{0, 1, 0}, {0, 3, -1}};  // the newcomer before its victim
  expect(table.commit(swap, 2, error) == STRATA_OK && table.slot(0, 1) == 0 && table.slot(0, 3) == -1, "a swap");

  Mailbox mailbox;
  expect(mailbox.open(plan, error) == STRATA_OK && mailbox.n_jobs() == 3, "mailbox");
  expect(mailbox.bytes() >= mailbox.activations_offset() + plan.activations_bytes, "room for the activations");
  int64_t end = mailbox_control_bytes(3);
  for (int32_t j = 0; j < 3; ++j) {
    expect(mailbox.job(j).op == j + 1 && mailbox.job(j).routing_offset >= end, "areas follow each other");
    end = mailbox.job(j).routing_offset + int64_t{plan.n_batch} * 2 * 2 * 4;
  }
  expect(end <= mailbox.activations_offset(), "and end before the activations");
  mailbox.store(mailbox_done(2), 7);
  expect(mailbox.load(mailbox_done(2)) == 7 && mailbox.load(mailbox_doorbell(2)) == 0, "words are apart");
  std::printf("slots and mailbox: ok\n");
  return 0;
}
