"""From points, meshes and uneven axes to a uniform grid."""
