#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace octavo::ops {

/// The registered operator `name` ("octavo::..."), for calls through the dispatcher; keep it in a
/// static. An error where no library registers it.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace octavo::ops
