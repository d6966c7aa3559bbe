"""Systems of equations written in symbols."""
