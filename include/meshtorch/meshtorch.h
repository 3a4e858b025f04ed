// Everything of meshtorch. Each header can also be included by itself.
#pragma once

#include "meshtorch/collectives.h"
#include "meshtorch/debug.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/distribute_module.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/error.h"
#include "meshtorch/group.h"
#include "meshtorch/implicit_replication.h"
#include "meshtorch/launch.h"
#include "meshtorch/nn.h"
#include "meshtorch/placement.h"
#include "meshtorch/process_group.h"
#include "meshtorch/rule.h"
#include "meshtorch/version.h"
