// System-scope atomic accesses: ordered between every processor that maps the memory, other
// processes included. T is a 4- or 8-byte integer, naturally aligned.
//
// This header is where each compiler's way of saying so stands; nothing else names a memory-model
// builtin.
#pragma once

#include "kernels/core/platform.hpp"

namespace symm {

template <class T>
inline T load_acquire(const T* address) {
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

template <class T>
inline T load_relaxed(const T* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}

template <class T>
inline void store_release(T* address, T value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

template <class T>
inline void store_relaxed(T* address, T value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}

// Sequentially consistent read-modify-write: also orders a later load after it, which the
// store-then-look-for-waiters pattern of wait.cpp relies on.
template <class T>
inline T fetch_add(T* address, T value) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

template <class T>
inline T exchange_seq_cst(T* address, T value) {
  return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
}

template <class T>
inline T load_seq_cst(const T* address) {
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}

}  // namespace symm
