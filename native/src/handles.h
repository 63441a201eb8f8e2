// What the opaque types of strata.h are.
#pragma once
#include "engine/engine.h"
#include "model/model.h"
#include "strata.h"

struct strata_model {
  strata::Model model;
};
struct strata_engine {
  strata::Engine engine;
};
