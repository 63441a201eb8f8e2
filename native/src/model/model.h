// One opened model: its plan and its weights. It outlives its engines.
#pragma once
#include "model/plan.h"
#include "model/weights.h"

namespace strata {

struct Model {
  Plan plan;
  Weights weights{plan};
  std::atomic<bool> lost{false};  // a lost worker of a dead engine may still read here: never freed
};

}  // namespace strata
