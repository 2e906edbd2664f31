#include "octavo/train/stop_signal.h"

#include <c10/util/Exception.h>

#include <csignal>

namespace octavo::train {

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

volatile std::sig_atomic_t g_requested = 0;
bool g_alive = false;
struct sigaction g_previous[2];

// Only what is safe inside a signal handler: a flag, and the default for the next signal.
void on_signal(int signal) {
  g_requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  TORCH_CHECK(!g_alive,
              "StopSignal: one is alive already; runs of one process go one after another");
  g_alive = true;
  g_requested = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // a write of the log in progress goes on
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &g_previous[i]);
}

StopSignal::~StopSignal() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &g_previous[i], nullptr);
  g_alive = false;
}

bool StopSignal::requested() { return g_requested != 0; }

}  // namespace octavo::train
