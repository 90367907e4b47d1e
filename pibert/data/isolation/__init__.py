"""Reading of foreign files in a process of their own, with limits on memory and time.

The libraries that parse them (scipy, HDF5, VTK's compressors) were not made for hostile input, and
a damaged file may crash them, hang them or make them allocate everything. ``server`` is a process
that imports the readers once and forks a child for each recording; ``remote`` asks the child for
trajectories and frames; ``wire`` is what both say. The parent unpickles nothing that comes from a
child: answers are JSON and raw arrays.
"""
