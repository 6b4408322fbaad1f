"""The operators as Triton kernels, for GPUs; each file names its plain twin in ops/.

Nothing of chacal needs this room: it is for those who installed `chacal[gpu]`.
"""
