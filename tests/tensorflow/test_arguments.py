"""Arguments have Horovod's names and order; scripts give them by position and by name."""

import inspect

import deft.tensorflow as hvd
import deft.tensorflow.keras as hvd_keras

_REDUCE = "average device_dense device_sparse compression op prescale_factor postscale_factor"
ARGUMENTS = {
    "allreduce": f"tensor {_REDUCE} name process_set ignore_name_scope",
    "grouped_allreduce": f"tensors {_REDUCE} process_set ignore_name_scope",
    "allgather": "tensor name ignore_name_scope process_set",
    "grouped_allgather": "tensors name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "broadcast_": "variables root_rank name process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope prescale_factor "
    "postscale_factor",
    "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor postscale_factor",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_global_variables": "root_rank",
    "broadcast_object": "obj root_rank session name process_set",
    "broadcast_object_fn": "root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "size_op": "process_set_id name",
    "process_set_included_op": "process_set_id name",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
    "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set scale_local_gradients",
    "PartialDistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set local_layers scale_local_gradients",
}
ARGUMENTS_OF_KERAS = {
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op groups process_set local_layers scale_local_gradients",
}


def test_arguments_have_horovods_names_and_order():
    for package, table in ((hvd, ARGUMENTS), (hvd_keras, ARGUMENTS_OF_KERAS)):
        for name, arguments in table.items():
            expected = arguments.split()
            found = list(inspect.signature(getattr(package, name)).parameters)
            assert found[: len(expected)] == expected, f"{package.__name__}.{name}"
