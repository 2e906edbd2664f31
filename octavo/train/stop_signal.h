#pragma once

namespace octavo::train {

/// While one lives, SIGINT and SIGTERM ask for a stop instead of killing the process: the training
/// loop looks at requested() between micro-batches, saves and returns. A second signal kills as
/// usual. The handlers that were there before come back at the end of the scope. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  static bool requested();
};

}  // namespace octavo::train
