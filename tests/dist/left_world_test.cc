// After destroy_process_group: what was made in the old world can be read, communicates no more, and does not
// stand in the way of a new one.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Shard;

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

// A world of this process alone, on gloo.
void join_alone(int port) {
  mt::init_process_group({.backend = "gloo",
                          .init_method = "tcp://127.0.0.1:" + std::to_string(port),
                          .rank = 0,
                          .world_size = 1,
                          .timeout = std::chrono::seconds(30)});
}

void expect_over(const std::function<void()>& communicates) {
  const std::string error = error_of(communicates);
  EXPECT_NE(error.find("belongs to a world that was destroyed"), std::string::npos) << error;
  EXPECT_NE(error.find("do: make"), std::string::npos) << error;
}

TEST(LeftWorld, OfAProcessDoesNotCommunicateAndMakesRoomForAnother) {
  const int port = free_port();
  join_alone(port);
  const mt::DeviceMesh old_mesh = line(1);
  const mt::Group old_group(old_mesh);
  const DTensor old_tensor = mt::distribute_tensor(numbers({4, 2}), old_mesh, {Shard(0)});
  mt::all_reduce(torch::ones({2}), "sum", old_group);
  mt::destroy_process_group();

  expect_over([&] { mt::all_reduce(torch::ones({2}), "sum", old_group); });
  expect_over([&] { mt::all_reduce(torch::ones({2}), "sum", old_mesh); });
  EXPECT_TRUE(is_equal(old_tensor.to_local(), numbers({4, 2})));

  join_alone(port);  // the old tensor is still there
  const mt::DeviceMesh mesh = line(1);
  const DTensor tensor = mt::distribute_tensor(numbers({4, 2}), mesh, {Shard(0)});
  EXPECT_FALSE(mesh == old_mesh);
  EXPECT_EQ(old_mesh.to_string(), "DeviceMesh((tp=1), [0], cpu, of a world that was destroyed)");
  const std::string error = error_of([&] { tensor + old_tensor; });
  EXPECT_NE(error.find("different meshes"), std::string::npos) << error;
  EXPECT_NE(error.find("other: DeviceMesh((tp=1), [0], cpu, of a world that was destroyed)"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("before it: DeviceMesh((tp=1), [0], cpu)"), std::string::npos) << error;
  // What the message says to do works.
  const DTensor moved = mt::distribute_tensor(old_tensor.full_tensor(), mesh, {Shard(0)});
  EXPECT_TRUE(is_equal(DTensor(tensor + moved).full_tensor(), numbers({4, 2}) * 2));
  mt::destroy_process_group();
}

TEST(LeftWorld, OfAThreadDoesNotCommunicate) {
  on_ranks(2, [](int) {
    if (ranks_are_processes()) return;
    const mt::DeviceMesh mesh = line(2);
    const DTensor x = mt::distribute_tensor(numbers({4, 2}), mesh, {Shard(0)});
    mt::barrier();
    mt::destroy_process_group();
    expect_over([&] { x.full_tensor(); });
    expect_over([&] { mt::all_reduce(torch::ones({2}), "sum", mesh); });
  });
}

TEST(DifferentMeshes, TheAdviceWorks) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const DTensor a = mt::distribute_tensor(numbers({4, 2}), mesh["dp"], {Shard(0)});
    const DTensor b = mt::distribute_tensor(numbers({4, 2}), mesh["tp"], {Shard(1)});
    const std::string error = error_of([&] { a + b; });
    EXPECT_NE(error.find("do: put both on one mesh, as distribute_tensor(x.full_tensor(), mesh, placements)"),
              std::string::npos)
        << error;
    const DTensor moved = mt::distribute_tensor(a.full_tensor(), mesh["tp"], {Shard(1)});
    EXPECT_TRUE(is_equal(DTensor(moved + b).full_tensor(), numbers({4, 2}) * 2));
  });
}

}  // namespace
}  // namespace meshtorch::testing
