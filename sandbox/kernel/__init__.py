"""What every service rests on: state, time, operations, faults, the meter, routes."""
