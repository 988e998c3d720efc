// How the collectives of a group get to know symmetric memory (SegmentUser).
#include <utility>

#include "backend/process_group_impl.hpp"

namespace symm {

std::shared_ptr<LocalGroup> ProcessGroupSymm::Impl::local_group() {
  engine_->check_usable();
  return engine_->communicator().local_group();
}

void ProcessGroupSymm::Impl::prepare_segment(const LocalSegment& local) {
  engine_->check_usable();
  engine_->communicator().check_segment(local);
  if (local.runtime().kind() != DeviceKind::kHost) {
    const int index = static_cast<GpuRuntime&>(local.runtime()).identity().index;
    device_launcher(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
  }
}

// What is queued must not find the segment yet: peers may carry it out before they know it.
void ProcessGroupSymm::Impl::add_segment(const std::shared_ptr<Segment>& segment, bool symmetric) {
  engine_->queue().drain();
  engine_->communicator().add_segment(segment, symmetric);
}

void ProcessGroupSymm::Impl::set_symmetric(const std::shared_ptr<Segment>& segment) {
  engine_->queue().drain();
  engine_->communicator().set_symmetric(segment);
}

void ProcessGroupSymm::Impl::remove_segment(const std::shared_ptr<Segment>& segment) {
  engine_->queue().drain();
  engine_->communicator().remove_segment(segment);
}

}  // namespace symm
