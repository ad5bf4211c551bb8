"""What Azure has on offer, where a machine could be, and every reason against it."""
