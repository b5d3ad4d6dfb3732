"""What Horovod scripts ask before they begin. Deft moves data by itself; of these it contains only gloo."""


def gloo_built():
    return True


def gloo_enabled():
    return True


def mpi_built():
    return False


def mpi_enabled():
    return False


def mpi_threads_supported():
    return False


def nccl_built():
    return False


def cuda_built():
    return False


def rocm_built():
    return False


def ddl_built():
    return False


def ccl_built():
    return False
