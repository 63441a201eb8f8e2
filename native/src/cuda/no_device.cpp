// Until the GPU's device is here, asking for it is refused.
#include "engine/device.h"

namespace strata {

Status cuda_device_bytes(const Model&, const strata_engine_config&, int64_t, int64_t*, Error& error) {
  return error.fail(STRATA_E_UNSUPPORTED, "this library cannot run a model on a GPU; use the devices cpu or sim");
}

Device* new_cuda_device() { return nullptr; }

}  // namespace strata
